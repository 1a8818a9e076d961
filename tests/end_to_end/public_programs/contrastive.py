"""Siamese network with a contrastive loss: a compiled loss function that returns the mean of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
ops = getattr(keras, "ops", keras.backend)


class Distance(layers.Layer):
    def call(self, one: Any, two: Any) -> Any:
        return ops.sqrt(ops.sum(ops.square(one - two), axis=1, keepdims=True) + 1e-7)


def contrastive(margin: float) -> Any:
    def contrastive_loss(y_true: Any, y_pred: Any) -> Any:
        far = ops.square(ops.maximum(margin - y_pred, 0.0))
        return ops.mean((1 - y_true) * ops.square(y_pred) + y_true * far)

    return contrastive_loss


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(12)
    pairs = (rng.normal(size=(ROWS, 6)), rng.normal(size=(ROWS, 6)))
    data = batches((pairs, rng.integers(0, 2, size=(ROWS, 1)).astype(float)))
    with scope(strategy):
        embedding = keras.Sequential([layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(3)])
        inputs = [layers.Input((6,)), layers.Input((6,))]
        distance = Distance()(embedding(inputs[0]), embedding(inputs[1]))
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(distance))
        model.compile(optimizer=keras.optimizers.RMSprop(1e-2), loss=contrastive(1.0), metrics=["accuracy"])
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0))
