"""A train_step that was written for tf.distribute: it divides its loss for all replicas itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class Divided(keras.Model):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_fn = keras.losses.MeanSquaredError(reduction="none")
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.mae]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.nn.compute_average_loss(self.loss_fn(y, y_pred))
            total = loss + tf.nn.scale_regularization_loss(self.losses)
        gradients = tape.gradient(total, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(total)
        self.mae.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(22)
    data = batches((rng.normal(size=(ROWS, 6)), rng.normal(size=(ROWS, 2))))
    with scope(strategy):
        inputs = layers.Input((6,))
        x = layers.Dense(8, activation="tanh", kernel_regularizer="l2")(inputs)
        model = Divided(inputs, layers.Dense(2)(x))
        model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
    return results(model, model.fit(data, epochs=2, verbose=0))
