"""Inputs moved along the gradient of a mean over rows, as Langevin sampling does, written in several ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers

WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "mean": lambda y, p: tf.reduce_mean(tf.square(y - p)),
    "sum of means": lambda y, p: tf.reduce_sum(tf.reduce_mean(tf.square(y - p), axis=0)),
    "size": lambda y, p: tf.reduce_sum(tf.square(y - p)) / tf.cast(tf.size(y), y.dtype),
    "rows": lambda y, p: 0.5 * tf.reduce_sum(tf.square(y - p)) / tf.cast(tf.shape(y)[0], y.dtype),
    "l2_loss": lambda y, p: tf.nn.l2_loss(y - p) / tf.cast(tf.shape(y)[0], y.dtype),
    # The gradient with respect to a row does not depend on the other rows.
    "sum": lambda y, p: tf.reduce_sum(tf.square(y - p)),
    "sum over outputs": lambda y, p: tf.reduce_sum(tf.square(y - p)) / tf.cast(tf.shape(y)[1], y.dtype),
    "rows one by one": lambda y, p: tf.reduce_sum(tf.square(y - p), axis=1),
}


class Moved(keras.Model):
    """Trains on inputs that were moved to a larger loss."""

    way = ""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = WAYS[self.way](y, self(x, training=True))
        moved = x + 3.0 * inner.gradient(loss, x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(moved, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"moved_loss": loss}


def run(strategy: Any) -> dict[str, Any]:
    """Trains a model in each way, and returns the numbers of what was trained."""
    rng = np.random.default_rng(22)
    data = batches((rng.normal(size=(ROWS, 4)), rng.normal(size=(ROWS, 2))))
    models, losses = [], {}
    for way in WAYS:
        with scope(strategy):
            inputs = layers.Input((4,))
            model = Moved(inputs, layers.Dense(2)(layers.Dense(4, activation="tanh")(inputs)))
            model.way = way
            model.compile(keras.optimizers.SGD(0.01))
        losses[f"loss of {way}"] = model.fit(data, epochs=2, verbose=0).history["moved_loss"]
        models.append(model)
    return results(models, **losses)
