"""Custom fit at a low level: a loss function without a reduction, a loss tracker, and the mean absolute error."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class CustomModel(keras.Model):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.mae_metric]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = keras.losses.mse(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(11)
    data = batches((rng.normal(size=(ROWS, 8)), rng.normal(size=(ROWS, 2))))
    with scope(strategy):
        inputs = layers.Input((8,))
        model = CustomModel(inputs, layers.Dense(2)(layers.Dense(8, activation="tanh")(inputs)))
        model.compile(optimizer=keras.optimizers.SGD(1e-2))
    return results(model, model.fit(data, epochs=3, verbose=0))
