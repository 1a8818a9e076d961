"""Speech recognition: convolutions and a GRU over spectrograms, and TensorFlow's CTC as the compiled loss.

TensorFlow computes parts of CTC in float32, also for float64 inputs, so that a change of 1e-16 in an input may change
a gradient by 1e-7. The test therefore has a wider bound for this program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
CHARACTERS, LENGTH = 5, 3


def ctc_loss(y_true: Any, y_pred: Any) -> Any:
    """Returns the loss of each row."""
    rows, steps = tf.shape(y_true)[0], tf.shape(y_pred)[1]
    lengths = tf.math.count_nonzero(y_true, axis=1, keepdims=True, dtype="int32")
    return keras.backend.ctc_batch_cost(y_true, tf.nn.softmax(y_pred), steps * tf.ones((rows, 1), "int32"), lengths)


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(6)
    spectrograms = rng.normal(size=(ROWS, 12, 6))
    labels = rng.integers(1, CHARACTERS, size=(ROWS, LENGTH))
    # Labels of different lengths are padded with 0.
    labels[np.arange(LENGTH) >= rng.integers(1, LENGTH + 1, size=(ROWS, 1))] = 0
    with scope(strategy):
        inputs = layers.Input((12, 6))
        x = layers.Conv1D(8, 3, padding="same", activation="relu", use_bias=False)(inputs)
        x = layers.GRU(6, return_sequences=True)(x)
        outputs = layers.Dense(CHARACTERS + 1)(x)
        model = keras.Model(inputs, outputs)
        model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=ctc_loss)
    data = batches((spectrograms, labels))
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    return results(model, history)
