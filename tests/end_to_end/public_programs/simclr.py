"""Contrastive pretraining: every image is compared with all images of the global batch, and with itself in a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
TEMPERATURE = 0.1


class ContrastiveModel(keras.Model):
    def __init__(self, encoder: Any, head: Any, all_rows: Callable[[Any], Any]) -> None:
        super().__init__()
        self.encoder, self.head, self.all_rows = encoder, head, all_rows
        self.loss_tracker = keras.metrics.Mean(name="c_loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.accuracy]

    def contrastive_loss(self, projections_1: Any, projections_2: Any) -> Any:
        one = tf.math.l2_normalize(self.all_rows(projections_1), axis=1)
        two = tf.math.l2_normalize(self.all_rows(projections_2), axis=1)
        similarities = tf.matmul(one, two, transpose_b=True) / TEMPERATURE
        labels = tf.range(tf.shape(one)[0])
        self.accuracy.update_state(labels, similarities)
        self.accuracy.update_state(labels, tf.transpose(similarities))
        losses = (
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, values)
            for values in (similarities, tf.transpose(similarities))
        )
        return sum(tf.reduce_mean(loss) for loss in losses) / 2

    def train_step(self, data: Any) -> dict[str, Any]:
        view_1, view_2 = data
        with tf.GradientTape() as tape:
            projections = [self.head(self.encoder(view, training=True), training=True) for view in (view_1, view_2)]
            loss = self.contrastive_loss(*projections)
        weights = self.encoder.trainable_weights + self.head.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


def run(strategy: Any) -> dict[str, Any]:
    all_rows = tf.identity
    if strategy:
        from tfdist.collectives import all_gather as all_rows
    rng = np.random.default_rng(23)
    images = rng.normal(size=(ROWS, 6, 6, 3))
    with scope(strategy):
        encoder = keras.Sequential(
            [
                layers.Input((6, 6, 3)),
                layers.Conv2D(4, 3, strides=2, activation="relu"),
                layers.Flatten(),
                layers.Dense(8, activation="relu"),
            ]
        )
        head = keras.Sequential([layers.Input((8,)), layers.Dense(8, activation="relu"), layers.Dense(4)])
        model = ContrastiveModel(encoder, head, all_rows)
        model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
    data = batches((images + 0.1 * rng.normal(size=images.shape), images[:, :, ::-1]))
    return results([encoder, head], model.fit(data, epochs=2, verbose=0))
