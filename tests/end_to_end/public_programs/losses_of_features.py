"""Losses with an axis of features, as long as that of the rows of a replica, and sums divided by time steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import BATCH, batches, results, scope

keras = tf.keras
layers = keras.layers

# As many rows as each of two replicas has features and time steps.
ROWS, FEATURES = 4 * BATCH, BATCH // 2


class PerFeature(layers.Layer):
    """Adds one loss for each feature, a mean over the rows."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(tf.reduce_mean(tf.square(inputs), axis=0))
        return inputs


class PerRow(layers.Layer):
    """Adds one loss for each row."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.01 * tf.reduce_mean(tf.square(inputs), axis=1))
        return inputs


class Vector(keras.Model):
    """Differentiates a vector of means over the rows: TensorFlow differentiates their sum."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.size = keras.metrics.Mean(name="size")

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            squares = tf.square(y - self(x, training=True))
            written_out = tf.reduce_sum(squares, axis=0) / tf.cast(tf.shape(x)[0], x.dtype)
            each = 0.25 * (tf.reduce_mean(squares, axis=0) + written_out)
        gradients = tape.gradient(each, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.size.update_state(each)
        return {"size": self.size.result(), "loss": tf.reduce_sum(each)}


class DividedBySteps(keras.Model):
    """Divides a sum over rows and steps by the number of steps, which leaves a sum over rows."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        summed = keras.losses.MeanSquaredError(reduction="sum")
        with tf.GradientTape() as tape:
            loss = summed(y, self(x, training=True)) / tf.cast(tf.shape(y)[1], y.dtype)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"steps": tf.cast(tf.shape(y)[1], y.dtype)}


def run(strategy: Any) -> dict[str, Any]:
    """Trains, and returns the numbers of what was trained."""
    rng = np.random.default_rng(21)
    x, y = rng.normal(size=(ROWS, 4)), rng.normal(size=(ROWS, FEATURES))
    t, z = rng.normal(size=(ROWS, FEATURES, 3)), rng.normal(size=(ROWS, FEATURES, 2))
    models, found = [], {}
    for rows in ("known", "unknown"):
        with scope(strategy):
            inputs, steps = layers.Input((4,)), layers.Input((FEATURES, 3))
            features = keras.Model(inputs, PerFeature()(layers.Dense(FEATURES)(inputs)))
            rows_too = keras.Model(inputs, PerRow()(layers.Dense(FEATURES)(inputs)))
            vector = Vector(inputs, layers.Dense(FEATURES)(inputs))
            divided = DividedBySteps(steps, layers.Dense(2)(steps))
            of_features = (features, rows_too, vector)
            for model in (*of_features, divided):
                model.compile(keras.optimizers.SGD(0.01))
        for model in (*of_features, divided):
            data = (t, z) if model is divided else (x, y)
            dataset = batches(data)
            if rows == "known":
                known = tf.data.Dataset.from_tensor_slices(data).batch(BATCH, drop_remainder=True)
                dataset = known.with_options(dataset.options())
            history = model.fit(dataset, epochs=2, verbose=0).history
            found |= {f"{rows} {len(models)} {name}": values for name, values in history.items()}
            models.append(model)
    return results(models, **found)
