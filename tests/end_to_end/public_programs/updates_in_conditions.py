"""Steps that apply gradients in a `tf.cond` or in a `tf.function`: accumulation of gradients, and delayed updates.

The first one is written as the programs of the reports keras-team/keras#17429 and keras-team/tf-keras#301 are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class Accumulating(keras.Model):
    """Adds up the gradients of some steps, and applies the sums in the last of them."""

    passes = 2

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made = tf.Variable(0, dtype=tf.int32, trainable=False)
        self.sums = [tf.Variable(tf.zeros_like(one), trainable=False) for one in self.trainable_variables]

    def gradients(self, data: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        self.made.assign_add(1)
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        return loss, tape.gradient(loss, self.trainable_variables)

    def train_step(self, data: Any) -> dict[str, Any]:
        loss, gradients = self.gradients(data)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient / self.passes)
        self.update()
        return {"squares": loss}

    def update(self) -> None:
        tf.cond(tf.equal(self.made, self.passes), self.apply, lambda: None)

    def apply(self) -> None:
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables, strict=True))
        self.made.assign(0)
        for total in self.sums:
            total.assign(tf.zeros_like(total))


class AddingInABranch(Accumulating):
    """Adds gradients up in one branch, and applies the clipped sums in the other one."""

    def train_step(self, data: Any) -> dict[str, Any]:
        loss, gradients = self.gradients(data)
        clipped = [tf.clip_by_norm(one, 0.5) for one in gradients]

        def update() -> None:
            both = [total + one for total, one in zip(self.sums, clipped, strict=True)]
            self.optimizer.apply_gradients(zip(both, self.trainable_variables, strict=True))
            for total in self.sums:
                total.assign(tf.zeros_like(total))

        def add() -> None:
            for total, one in zip(self.sums, gradients, strict=True):
                total.assign_add(one)

        tf.cond(self.made % 2 == 0, update, add)
        return {"squares": loss}


class AccumulatingAndClipping(Accumulating):
    """Clips the sums before it applies them."""

    def apply(self) -> None:
        clipped, _ = tf.clip_by_global_norm(self.sums, 0.5)
        self.optimizer.apply_gradients(zip(clipped, self.trainable_variables, strict=True))
        self.made.assign(0)
        for total in self.sums:
            total.assign(tf.zeros_like(total))


class InAFunction(Accumulating):
    """AutoGraph makes the condition, in a function within the step."""

    passes = 3

    @tf.function
    def update(self) -> None:
        if self.made == self.passes:
            self.apply()


class Decorated(keras.Model):
    """Clips its gradients, in a step that is itself a function, and says how often the norm was above the limit."""

    @tf.function
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
        self.optimizer.apply_gradients(zip(clipped, self.trainable_variables, strict=True))
        return {"loss": loss, "norm": norm}


class Delayed(keras.Model):
    """Updates the first layer in each step, and the others in every second step; the branches return numbers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.slow = keras.optimizers.SGD(0.05)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients[:2], weights[:2], strict=True))

        def update() -> tuple[Any, Any]:
            self.slow.apply_gradients(zip(gradients[2:], weights[2:], strict=True))
            return tf.ones([], tf.float64), {"first": tf.reduce_mean(gradients[2])}

        def leave() -> tuple[Any, Any]:
            return tf.zeros([], tf.float64), {"first": tf.zeros([], tf.float64)}

        is_due = tf.equal(tf.cast(self.optimizer.iterations, tf.int32) % 2, 0)
        updated, of_slow = tf.cond(is_due, update, leave)
        return {"loss": loss, "updated": updated, **of_slow}


class Alternating(keras.Model):
    """Trains by one of two losses, as the two players of a game do; all of it is in the branches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.other = keras.optimizers.Adam(0.05)
        self.made = tf.Variable(0, dtype=tf.int32, trainable=False)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            before = tf.reduce_mean(tf.abs(y - self(x, training=True)))
        of_both = tape.gradient(before, weights)

        def first() -> tf.Tensor:
            with tf.GradientTape() as tape:
                # No mean over rows.
                loss = tf.sqrt(tf.reduce_mean(tf.square(y - self(x, training=True))))
            gradients = tape.gradient(loss, weights)
            gradients = [tf.clip_by_norm(one, 0.4) for one in gradients]
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return loss

        def second() -> tf.Tensor:
            # Gradients of the step, clipped in the branch, by an optimizer that is not built yet.
            gradients, norm = tf.clip_by_global_norm(of_both, 0.3)
            self.other.apply_gradients(zip(gradients, weights, strict=True))
            return norm

        self.made.assign_add(1)
        return {"before": before, "other": tf.cond(self.made % 2 == 1, first, second)}


class Skipping(keras.Model):
    """Skips updates whose loss or whose gradients are not finite or too large, as programs with float16 do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.means = [keras.metrics.Mean(name=f"updated_{i}") for i in range(5)]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean(tf.square(y - predicted))
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)

        def update() -> tf.Tensor:
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return tf.ones([], tf.float64)

        def skip() -> tf.Tensor:
            return tf.zeros([], tf.float64)

        are_finite = [tf.reduce_all(tf.math.is_finite(one)) for one in gradients]
        updated = [
            tf.cond(tf.math.is_finite(loss), update, skip),
            tf.cond(tf.reduce_all(are_finite), update, skip),
            tf.cond(loss < 30.0, update, skip),
            tf.cond(tf.linalg.global_norm(gradients) < 9.0, update, skip),
            tf.cond(tf.logical_not(tf.math.is_nan(loss)) & (loss < 20.0), update, skip),
        ]
        for mean, one in zip(self.means, updated, strict=True):
            mean.update_state(one)
        return {mean.name: mean.result() for mean in self.means}


def run(strategy: Any) -> dict[str, Any]:
    """Trains, and returns the numbers of what was trained."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(ROWS, 4))
    y = np.stack([x.sum(axis=1), x.prod(axis=1)], axis=1) * 3
    models: list[Any] = []
    histories: dict[str, Any] = {}
    # A row of the second replica in the third batch, and one of the first replica in the last batch.
    spoilt = x.copy()
    spoilt[47], spoilt[64] = np.nan, np.inf
    kinds = (Accumulating, AccumulatingAndClipping, AddingInABranch, InAFunction, Decorated, Delayed, Alternating)
    for kind in (*kinds, Skipping):
        with scope(strategy):
            inputs = layers.Input((4,))
            model = kind(inputs, layers.Dense(2)(layers.Dense(6, activation="tanh")(inputs)))
            model.compile(keras.optimizers.Adam(0.02))
        inputs_of_kind = spoilt if kind is Skipping else x
        history = model.fit(batches((inputs_of_kind, y)), epochs=3, verbose=0).history
        histories |= {f"{name} of {kind.__name__}": values for name, values in history.items()}
        models.append(model)
    return results(models, **histories)
