"""Endpoint layer: it takes the targets as an input, and adds its loss itself. The model is compiled without a loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class LogisticEndpoint(layers.Layer):
    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def call(self, targets: Any, logits: Any, sample_weight: Any = None) -> Any:
        self.add_loss(self.loss_fn(targets, logits, sample_weight))
        return tf.nn.softmax(logits)


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    data = {
        "inputs": rng.normal(size=(ROWS, 3)),
        "targets": rng.integers(0, 2, size=(ROWS, 10)).astype(float),
        "weights": rng.uniform(0.5, 2.0, size=(ROWS,)),
    }
    with scope(strategy):
        inputs = keras.Input((3,), name="inputs")
        targets = keras.Input((10,), name="targets")
        weights = keras.Input((), name="weights")
        logits = layers.Dense(10, kernel_regularizer="l2")(layers.Dense(8, activation="tanh")(inputs))
        predictions = LogisticEndpoint(name="predictions")(targets, logits, weights)
        model = keras.Model([inputs, targets, weights], predictions)
        model.compile(optimizer=keras.optimizers.Adam(1e-2))
    history = model.fit(batches(data), epochs=3, verbose=0)
    return results(model, history, model.evaluate(batches(data), verbose=0))
