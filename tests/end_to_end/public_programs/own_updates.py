"""Steps that use their gradients themselves: accumulation, adaptive clipping, sharpness-aware steps, plain descent.

They are written as programs for one device write them: keras.io's adaptive gradient clipping clips before
`apply_gradients`, TensorFlow's guide of basic training loops subtracts gradients from weights, and accumulators are
variables of the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class Stepping(keras.Model):
    """Computes the loss and its gradients, which each of the models below uses in another way."""

    def gradients(self, data: Any) -> tuple[Any, list[Any]]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        return loss, tape.gradient(loss, self.trainable_variables)

    def train_step(self, data: Any) -> dict[str, Any]:
        loss, gradients = self.gradients(data)
        return {"loss": loss, **self.update(gradients, data)}


class Accumulating(Stepping):
    """Adds up the gradients of two steps, and leaves the weights alone in every other step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sums = [tf.Variable(tf.zeros_like(one), trainable=False) for one in self.trainable_variables]
        self.made = tf.Variable(0.0, trainable=False, dtype=tf.float64)

    def update(self, gradients: Any, data: Any) -> dict[str, Any]:
        self.made.assign_add(1.0)
        is_due = tf.cast(tf.equal(self.made % 2, 0), tf.float64)
        for variable, total, gradient in zip(self.trainable_variables, self.sums, gradients, strict=True):
            total.assign_add(gradient / 2)
            variable.assign_sub(0.1 * is_due * total)
            total.assign((1 - is_due) * total)
        return {}


def norm_of_units(value: Any) -> tf.Tensor:
    return tf.sqrt(tf.reduce_sum(tf.square(value), axis=0 if len(value.shape) > 1 else None, keepdims=True))


class AdaptivelyClipped(Stepping):
    def update(self, gradients: Any, data: Any) -> dict[str, Any]:
        clipped = []
        for variable, gradient in zip(self.trainable_variables, gradients, strict=True):
            limit = 0.01 * tf.maximum(norm_of_units(variable), 1e-3)
            size = norm_of_units(gradient)
            clipped.append(tf.where(size < limit, gradient, gradient * (limit / tf.maximum(size, 1e-6))))
        self.optimizer.apply_gradients(zip(clipped, self.trainable_variables, strict=True))
        return {"norm": tf.linalg.global_norm(gradients)}


class SharpnessAware(Stepping):
    def update(self, gradients: Any, data: Any) -> dict[str, Any]:
        scale = 0.05 / (tf.linalg.global_norm(gradients) + 1e-12)
        steps = [gradient * scale for gradient in gradients]
        for variable, step in zip(self.trainable_variables, steps, strict=True):
            variable.assign_add(step)
        loss, second = self.gradients(data)
        for variable, step in zip(self.trainable_variables, steps, strict=True):
            variable.assign_sub(step)
        self.optimizer.apply_gradients(zip(second, self.trainable_variables, strict=True))
        return {"sharp": loss}


class Descending(Stepping):
    def update(self, gradients: Any, data: Any) -> dict[str, Any]:
        for variable, gradient in zip(self.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.05 * tf.clip_by_norm(gradient, 1.0))
        return {}


def run(strategy: Any) -> dict[str, Any]:
    """Trains, and returns the numbers of what was trained."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(ROWS, 4))
    y = np.stack([x.sum(axis=1), x.prod(axis=1)], axis=1) * 3
    models: list[Any] = []
    histories: dict[str, Any] = {}
    for kind in (Accumulating, AdaptivelyClipped, SharpnessAware, Descending):
        with scope(strategy):
            inputs = layers.Input((4,))
            model = kind(inputs, layers.Dense(2)(layers.Dense(6, activation="tanh")(inputs)))
            model.compile(keras.optimizers.Adam(0.02))
        history = model.fit(batches((x, y)), epochs=2, verbose=0).history
        histories |= {f"{name} of {kind.__name__}": values for name, values in history.items()}
        models.append(model)
    return results(models, **histories)
