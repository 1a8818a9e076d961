"""State that layers and a train_step compute from the rows of a batch: running means, a centre, counters.

keras.io's guides make such state with add_weight(trainable=False) or tf.Variable, and leave the aggregation out. A sum
over all replicas needs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope
from tfdist.keras_compat import keras_in_use

keras = tf.keras
layers = keras.layers


class Standardized(layers.Layer):
    """Subtracts the running mean of its inputs and divides by the running mean of their size, in evaluation."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")
        self.size = self.add_weight(shape=(), initializer="ones", trainable=False, name="size")
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, inputs: Any, training: Any = None) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, axis=0))
            self.size.assign_add(0.1 * (tf.reduce_mean(tf.abs(inputs)) - self.size))
            self.steps.assign_add(1.0)
            return inputs
        return (inputs - self.mean) / self.size


class Normalized(layers.Layer):
    """Keeps a tf.Variable of its own, as code from before add_weight does, and has an axis of time."""

    def __init__(self) -> None:
        super().__init__()
        self.level = tf.Variable(tf.zeros([1, 1, 3], tf.float64), trainable=False, name="level")

    def call(self, inputs: Any, training: Any = None) -> Any:
        if training:
            moment, _ = tf.nn.moments(inputs, axes=[-3, -2], keepdims=True)
            self.level.assign_sub(0.2 * (self.level - moment))
            return inputs
        return inputs - self.level


class Counted(layers.Layer):
    """Subtracts the mean of all rows that it has seen, in evaluation."""

    def build(self, shape: Any) -> None:
        summed = {"initializer": "zeros", "trainable": False}
        if keras_in_use().is_keras3:
            summed["aggregation"] = "sum"
        else:
            summed["aggregation"] = tf.VariableAggregation.SUM
        self.rows = self.add_weight(shape=(), name="rows", **summed)
        self.total = self.add_weight(shape=(shape[-1],), name="total", **summed)

    def call(self, inputs: Any, training: Any = None) -> Any:
        if training:
            self.rows.assign_add(tf.cast(tf.shape(inputs)[0], inputs.dtype))
            self.total.assign_add(tf.reduce_sum(inputs, axis=0))
            return inputs
        return inputs - self.total / tf.maximum(self.rows + 0.0, 1.0)


class Centred(keras.Model):
    """The loss subtracts a centre of the earlier steps, as DINO's teacher does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.centre = tf.Variable(tf.zeros([2], tf.float64), trainable=False, name="centre")

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean(tf.square(y - y_pred + self.centre))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.centre.assign(0.8 * self.centre + 0.2 * tf.reduce_mean(y_pred, axis=0))
        return {"loss": loss}


def run(strategy: Any) -> dict[str, Any]:
    """Trains, and returns the numbers of what was trained."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(ROWS, 5, 3)) + 0.5, rng.normal(size=(ROWS, 2))
    with scope(strategy):
        inputs = layers.Input((5, 3))
        hidden = Normalized()(inputs)
        outputs = layers.Dense(2)(Counted()(Standardized()(layers.Flatten()(hidden))))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.Adam(0.01), "mse")
        centred = Centred(inputs, layers.Dense(2)(layers.Flatten()(inputs)))
        centred.compile(keras.optimizers.SGD(0.05))
    history = model.fit(batches((x, y)), validation_data=batches((x, y)), epochs=3, verbose=0)
    centre = centred.fit(batches((x, y)), epochs=3, verbose=0).history
    return results(
        [model, centred],
        history,
        model.evaluate(x, y, batch_size=16, verbose=0),
        predicted=model.predict(x, batch_size=16, verbose=0),
        centre=centred.centre.numpy(),
        losses=centre["loss"],
    )
