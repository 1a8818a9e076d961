"""Losses with the reduction "sum", which the step divides by the rows that it sees, as in keras.io's RetinaNet."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import BATCH, ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class Divided(keras.Model):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.summed = keras.losses.MeanSquaredError(reduction="sum")
        self.tracker = keras.metrics.Mean(name="tracked_loss")

    def loss_of(self, x: Any, y: Any, y_pred: Any) -> Any:
        return 0.5 * self.summed(y, y_pred) / tf.cast(tf.shape(x)[0], y_pred.dtype)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"loss": loss, "tracked_loss": self.tracker.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        self.tracker.update_state(self.loss_of(x, y, self(x, training=False)))
        return {"tracked_loss": self.tracker.result()}


class DividedAndNot(Divided):
    def loss_of(self, x: Any, y: Any, y_pred: Any) -> Any:
        penalty = self.summed(y_pred, tf.zeros_like(y_pred)) / BATCH
        return super().loss_of(x, y, y_pred) + 0.1 * penalty + tf.reduce_mean(y_pred)


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(17)
    arrays = rng.normal(size=(ROWS, 4)), rng.normal(size=(ROWS, 2))
    data = batches(arrays)
    # The number of rows is a constant of the graph.
    known = tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH, drop_remainder=True).with_options(data.options())
    models, found = [], {}
    for name, kind, read in (
        ("divided", Divided, data),
        ("both", DividedAndNot, data),
        ("known", DividedAndNot, known),
    ):
        with scope(strategy):
            inputs = layers.Input((4,))
            model = kind(inputs, layers.Dense(2)(layers.Dense(5, activation="tanh")(inputs)))
            model.compile(optimizer=keras.optimizers.SGD(0.05))
        history = model.fit(read, epochs=2, verbose=0).history
        found |= {f"{name}: {log}": values for log, values in history.items()}
        found[f"{name}: evaluated"] = model.evaluate(read, verbose=0)
        models.append(model)
    return results(models, **found)
