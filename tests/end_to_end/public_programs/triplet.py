"""Siamese network with a triplet loss: the train_step differentiates one loss for each row, and tracks the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class DistanceLayer(layers.Layer):
    def call(self, anchor: Any, positive: Any, negative: Any) -> Any:
        to_positive = tf.reduce_sum(tf.square(anchor - positive), -1)
        return to_positive, tf.reduce_sum(tf.square(anchor - negative), -1)


class SiameseModel(keras.Model):
    def __init__(self, network: Any, margin: float = 0.5) -> None:
        super().__init__()
        self.network, self.margin = network, margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]

    def call(self, inputs: Any) -> Any:
        return self.network(inputs)

    def losses_of(self, triplets: Any) -> Any:
        to_positive, to_negative = self.network(triplets)
        return tf.maximum(to_positive - to_negative + self.margin, 0.0)

    def train_step(self, triplets: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = self.losses_of(triplets)
        # The gradient of a vector is the sum of the gradients of its elements.
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, triplets: Any) -> dict[str, Any]:
        self.loss_tracker.update_state(self.losses_of(triplets))
        return {"loss": self.loss_tracker.result()}


def make_model() -> Any:
    embedding = keras.Sequential([layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(3)])
    triplet = {name: layers.Input((6,), name=name) for name in ("anchor", "positive", "negative")}
    return SiameseModel(keras.Model(triplet, DistanceLayer()(*(embedding(one) for one in triplet.values()))))


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(10)
    data = batches({name: rng.normal(size=(ROWS, 6)) for name in ("anchor", "positive", "negative")})
    with scope(strategy):
        model = make_model()
        model.compile(optimizer=keras.optimizers.SGD(1e-3))
    history = model.fit(data, epochs=3, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0))
