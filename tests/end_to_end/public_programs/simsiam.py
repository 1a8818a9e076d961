"""SimSiam: two views of each image, batch normalization over the global batch, and stop_gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


def negative_similarity(p: Any, z: Any) -> Any:
    z = tf.stop_gradient(z)
    p, z = tf.math.l2_normalize(p, axis=1), tf.math.l2_normalize(z, axis=1)
    return -tf.reduce_mean(tf.reduce_sum(p * z, axis=1))


class SimSiam(keras.Model):
    def __init__(self, encoder: Any, predictor: Any) -> None:
        super().__init__()
        self.encoder, self.predictor = encoder, predictor
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        one, two = data
        with tf.GradientTape() as tape:
            z1, z2 = self.encoder(one, training=True), self.encoder(two, training=True)
            p1, p2 = self.predictor(z1, training=True), self.predictor(z2, training=True)
            loss = negative_similarity(p1, z2) / 2 + negative_similarity(p2, z1) / 2
        weights = self.encoder.trainable_variables + self.predictor.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


def make_model(normalization: Any) -> Any:
    images = layers.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False, kernel_regularizer="l2")(images)
    x = layers.ReLU()(normalization()(x))
    x = layers.Dense(8, use_bias=False)(layers.GlobalAveragePooling2D()(x))
    x = layers.ReLU()(normalization()(x))
    encoder = keras.Model(images, normalization()(layers.Dense(8, use_bias=False)(x)))
    features = layers.Input((8,))
    x = layers.ReLU()(normalization()(layers.Dense(4, use_bias=False)(features)))
    return SimSiam(encoder, keras.Model(features, layers.Dense(8)(x)))


def run(strategy: Any) -> dict[str, Any]:
    normalization = layers.BatchNormalization
    if strategy:
        from tfdist.layers import SyncBatchNormalization as normalization
    rng = np.random.default_rng(7)
    images = rng.normal(size=(ROWS, 8, 8, 3))
    data = batches((images + 0.1 * rng.normal(size=images.shape), images[:, :, ::-1]))
    with scope(strategy):
        model = make_model(normalization)
        model.compile(optimizer=keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.05, 10), momentum=0.6))
    history = model.fit(data, epochs=2, verbose=0)
    return results(model, history, predicted=model.encoder.predict(batches(images), verbose=0))
