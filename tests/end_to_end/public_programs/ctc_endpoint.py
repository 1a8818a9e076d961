"""Optical character recognition: convolutions, a bidirectional LSTM, and a CTC layer that adds a loss for each row.

The loss is computed here, because the operation of TensorFlow computes parts of it in float32: see ctc_compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
CHARACTERS, LENGTH = 5, 3


def ctc_cost(labels: Any, probabilities: Any) -> Any:
    """Returns -log of the sum of the probabilities of all paths, of shape (rows, 1). The last class is blank."""
    labels = tf.cast(labels, "int32")
    blanks = tf.fill(tf.shape(labels), CHARACTERS)
    path = tf.concat([tf.reshape(tf.stack([blanks, labels], 2), [-1, 2 * LENGTH]), blanks[:, :1]], 1)
    emitted = tf.gather(probabilities, path, axis=2, batch_dims=1)
    zeros = tf.zeros_like(emitted[:, 0])
    skips = tf.concat([zeros[:, :2], tf.cast(path[:, 2:] != path[:, :-2], zeros.dtype)], 1)
    total = tf.concat([emitted[:, 0, :2], zeros[:, 2:]], 1)
    for step in range(1, probabilities.shape[1]):
        one, two = (tf.concat([zeros[:, :shift], total[:, :-shift]], 1) for shift in (1, 2))
        total = (total + one + skips * two) * emitted[:, step]
    return -tf.math.log(total[:, -1:] + total[:, -2:-1])


class CTCLayer(layers.Layer):
    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self.loss_fn = ctc_cost

    def call(self, y_true: Any, y_pred: Any) -> Any:
        self.add_loss(self.loss_fn(y_true, y_pred))
        return y_pred


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    data = {
        "image": rng.uniform(size=(ROWS, 16, 4, 1)),
        "label": rng.integers(0, CHARACTERS, size=(ROWS, LENGTH)).astype(float),
    }
    with scope(strategy):
        image = layers.Input((16, 4, 1), name="image")
        label = layers.Input((LENGTH,), name="label")
        x = layers.Conv2D(4, 3, activation="relu", padding="same")(image)
        x = layers.Reshape((8, 16))(layers.MaxPooling2D((2, 1))(x))
        x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
        x = layers.Dense(CHARACTERS + 1, activation="softmax")(x)
        model = keras.Model([image, label], CTCLayer(name="ctc_loss")(label, x))
        model.compile(optimizer=keras.optimizers.Adam(1e-2))
    history = model.fit(batches(data), epochs=2, verbose=0)
    return results(model, history, model.evaluate(batches(data), verbose=0))
