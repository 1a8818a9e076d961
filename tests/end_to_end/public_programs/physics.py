"""Physics-informed network: its loss contains gradients of the output by the input, a metric counts with assign."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class Residuals(keras.metrics.Metric):
    def __init__(self, name: str = "residual") -> None:
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, residuals: Any) -> None:
        self.total.assign(self.total + tf.reduce_sum(tf.abs(residuals)))
        self.count.assign(self.count + tf.cast(tf.size(residuals), self.count.dtype))

    def result(self) -> Any:
        return self.total / self.count


class Oscillator(keras.Model):
    """Learns u with u'' = -u at the given times, and u = cos at the given observations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_tracker, self.residuals = keras.metrics.Mean(name="loss"), Residuals()

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.residuals]

    def train_step(self, data: Any) -> dict[str, Any]:
        times, observed = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as outer:
                outer.watch(times)
                with tf.GradientTape() as inner:
                    inner.watch(times)
                    u = self(times, training=True)
                slope = inner.gradient(u, times)
            residuals = outer.gradient(slope, times) + u
            loss = tf.reduce_mean(tf.square(residuals)) + keras.losses.MeanSquaredError()(observed, u)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.residuals.update_state(residuals)
        return {metric.name: metric.result() for metric in self.metrics}


def run(strategy: Any) -> dict[str, Any]:
    times = np.random.default_rng(21).uniform(0, 3, size=(ROWS, 1))
    with scope(strategy):
        inputs = layers.Input((1,))
        x = layers.Dense(8, activation="tanh")(layers.Dense(8, activation="tanh")(inputs))
        model = Oscillator(inputs, layers.Dense(1)(x))
        model.compile(optimizer=keras.optimizers.Adam(1e-2))
    return results(model, model.fit(batches((times, np.cos(times))), epochs=2, verbose=0))
