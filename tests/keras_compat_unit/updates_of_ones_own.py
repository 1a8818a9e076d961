"""A model that gives its gradients to a function, and functions that update weights as programs for one device do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

keras = tf.keras
layers = keras.layers
WORDS = 7


class Model(keras.Model):
    """Gives its gradients to a function, which updates the weights.

    Args:
        update: gets the model, the gradients, of which that of the embedding are slices, and the batch; returns logs.
        divides: whether the loss is divided by the global batch.
    """

    def __init__(self, update: Callable[..., Any], *, divides: bool = False) -> None:
        super().__init__()
        self.update, self.divides = update, divides
        self.words = layers.Embedding(WORDS, 3)
        self.hidden, self.outputs_of_rows = layers.Dense(5, activation="tanh"), layers.Dense(2)
        self.tracker = keras.metrics.Mean(name="tracked")
        self.stores, self.count = list[Any](), None
        # Keras 2 has none.
        self.seed = keras.random.SeedGenerator(3) if hasattr(keras, "random") else None

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def call(self, inputs: Any) -> Any:
        x, words = inputs
        return self.outputs_of_rows(self.hidden(tf.concat([x, tf.reduce_sum(self.words(words), axis=1)], axis=-1)))

    def gradients(self, data: Any) -> tuple[Any, list[Any]]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.mean(tf.reduce_mean(tf.square(y - self(x)), axis=-1))
        return loss, tape.gradient(loss, self.trainable_variables)

    def mean(self, each: Any) -> Any:
        return tf.nn.compute_average_loss(each) if self.divides else tf.reduce_mean(each)

    def train_step(self, data: Any) -> dict[str, Any]:
        loss, gradients = self.gradients(data)
        return {"loss": loss, **(self.update(self, gradients, data) or {})}

    def applied(self, gradients: Sequence[Any]) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))

    def with_weights(self, gradients: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
        dense = [tf.convert_to_tensor(one) for one in gradients]
        return list(zip(self.trainable_variables, dense, self.stores, strict=True))


def clipped_by_norm(model: Any, gradients: Any, data: Any) -> None:
    model.applied([tf.clip_by_norm(one, 0.3) for one in gradients])


def clipped_by_value(model: Any, gradients: Any, data: Any) -> None:
    model.applied([tf.clip_by_value(one, -0.1, 0.1) for _, one, _ in model.with_weights(gradients)])


def clipped_together(model: Any, gradients: Any, data: Any) -> dict[str, Any]:
    clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
    model.applied(clipped)
    return {"norm": norm}


def clipped_in_a_function(model: Any, gradients: Any, data: Any) -> None:
    clip = tf.function(lambda given: tf.clip_by_global_norm(given, 0.5)[0])
    model.applied(clip([one for _, one, _ in model.with_weights(gradients)]))


def clipped_to_weights(model: Any, gradients: Any, data: Any) -> None:
    """Adaptive gradient clipping, as for networks without normalization."""
    clipped = []
    for weight, gradient, _ in model.with_weights(gradients):
        limit, size = 0.1 * tf.maximum(tf.norm(weight), 1e-3), tf.norm(gradient)
        clipped.append(tf.where(size < limit, gradient, gradient * limit / tf.maximum(size, 1e-6)))
    model.applied(clipped)


def signs(model: Any, gradients: Any, data: Any) -> None:
    model.applied([tf.sign(one) for _, one, _ in model.with_weights(gradients)])


def centralized(model: Any, gradients: Any, data: Any) -> None:
    model.applied([one - tf.reduce_mean(one, axis=0) for _, one, _ in model.with_weights(gradients)])


def decayed(model: Any, gradients: Any, data: Any) -> None:
    model.applied([one + 0.01 * weight for weight, one, _ in model.with_weights(gradients)])


def subtracted(model: Any, gradients: Any, data: Any) -> None:
    for weight, gradient, _ in model.with_weights(gradients):
        weight.assign_sub(0.1 * gradient)


def subtracted_in_a_branch(model: Any, gradients: Any, data: Any) -> None:
    model.count.assign(model.count + 1)
    tf.cond(model.count % 2 < 1, lambda: subtracted(model, gradients, data), lambda: None)


def assigned(model: Any, gradients: Any, data: Any) -> None:
    for weight, gradient, _ in model.with_weights(gradients):
        weight.assign(weight - 0.1 * gradient)


def with_momentum(model: Any, gradients: Any, data: Any) -> None:
    for weight, gradient, velocity in model.with_weights(gradients):
        velocity.assign(0.9 * velocity + gradient)
        weight.assign_sub(0.1 * velocity)


def accumulated(model: Any, gradients: Any, data: Any) -> None:
    for _, gradient, store in model.with_weights(gradients):
        store.assign_add(gradient)
    model.applied([tf.convert_to_tensor(store) for store in model.stores])


def accumulated_and_clipped(model: Any, gradients: Any, data: Any) -> None:
    for _, gradient, store in model.with_weights(gradients):
        store.assign_add(gradient)
    model.applied(tf.clip_by_global_norm([tf.convert_to_tensor(store) for store in model.stores], 0.5)[0])


def sharpness_aware(model: Any, gradients: Any, data: Any) -> None:
    columns = model.with_weights(gradients)
    norm = tf.linalg.global_norm([gradient for _, gradient, _ in columns])
    steps = [(weight, 0.3 * gradient / (norm + 1e-12)) for weight, gradient, _ in columns]
    for weight, step in steps:
        weight.assign_add(step)
    _, second = model.gradients(data)
    for weight, step in steps:
        weight.assign_sub(step)
    model.applied(second)


def projected(model: Any, gradients: Any, data: Any) -> None:
    """The gradient of a second task, without its part along that of the first, as in gradient surgery."""
    x, _ = data
    with tf.GradientTape() as tape:
        loss = model.mean(tf.reduce_mean(tf.abs(model(x)), axis=-1))
    others = model.with_weights(tape.gradient(loss, model.trainable_variables))
    sums = []
    for (_, one, _), (_, other, _) in zip(model.with_weights(gradients), others, strict=True):
        along = tf.minimum(tf.reduce_sum(one * other), 0.0) / (tf.reduce_sum(one * one) + 1e-12)
        sums.append(one + other - along * one)
    model.applied(sums)


def velocity_of_the_step_before(model: Any, gradients: Any, data: Any) -> None:
    velocities = [tf.convert_to_tensor(store) for store in model.stores]
    for _, gradient, store in model.with_weights(gradients):
        store.assign(0.5 * store + gradient)
    model.applied(velocities)


def checked(model: Any, gradients: Any, data: Any) -> None:
    model.applied(
        [tf.clip_by_norm(tf.debugging.check_numerics(one, ""), 0.3) for _, one, _ in model.with_weights(gradients)]
    )


def subtracted_from_rows(model: Any, gradients: Any, data: Any) -> None:
    """The gradient of the embedding is subtracted as slices."""
    table = model.trainable_variables[0]
    getattr(table, "value", table).scatter_sub(tf.IndexedSlices(0.1 * gradients[0].values, gradients[0].indices))
    for weight, gradient, _ in model.with_weights(gradients)[1:]:
        weight.assign_sub(0.1 * gradient)


def without_infinities(model: Any, gradients: Any, data: Any) -> None:
    """Constants of the shape of the slices have no entries for those of other replicas."""
    slices = gradients[0]
    values = tf.where(tf.math.is_finite(slices.values), slices.values, tf.zeros_like(slices.values))
    model.applied([tf.IndexedSlices(values, slices.indices, slices.dense_shape), *gradients[1:]])


def logged_together(model: Any, gradients: Any, data: Any) -> dict[str, Any]:
    norms = [tf.norm(one) for _, one, _ in model.with_weights(gradients)]
    model.tracker.update_state(norms)
    vector = model.tracker.result() * 1.0
    model.tracker.update_state(tf.stack(norms))
    model.applied(gradients)
    return {"list": vector, "vector": model.tracker.result()}


def logged(model: Any, gradients: Any, data: Any) -> dict[str, Any]:
    norm = tf.linalg.global_norm(gradients)
    model.tracker.update_state(norm)
    model.applied(gradients)
    return {"norm": norm, "tracked": model.tracker.result(), "last": tf.reduce_mean(tf.abs(gradients[-1]))}
