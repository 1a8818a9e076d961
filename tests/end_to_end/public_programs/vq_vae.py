"""VQ-VAE: a codebook whose layer adds two losses, a straight-through gradient, and a train_step with trackers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
WIDTH, CODES = 3, 6


class VectorQuantizer(layers.Layer):
    def __init__(self, beta: float = 0.25) -> None:
        super().__init__(name="vector_quantizer")
        self.beta = beta

    def build(self, shape: Any) -> None:
        self.codebook = self.add_weight(shape=(WIDTH, CODES), initializer="random_uniform", name="codebook")

    def call(self, x: Any) -> Any:
        flat = tf.reshape(x, [-1, WIDTH])
        book = tf.convert_to_tensor(self.codebook)
        distances = tf.reduce_sum(flat**2, 1, keepdims=True) + tf.reduce_sum(book**2, 0) - 2 * tf.matmul(flat, book)
        codes = tf.one_hot(tf.argmin(distances, axis=1), CODES, dtype=x.dtype)
        quantized = tf.reshape(tf.matmul(codes, book, transpose_b=True), tf.shape(x))
        commitment = tf.reduce_mean((tf.stop_gradient(quantized) - x) ** 2)
        self.add_loss(self.beta * commitment + tf.reduce_mean((quantized - tf.stop_gradient(x)) ** 2))
        return x + tf.stop_gradient(quantized - x)


class VQVAETrainer(keras.Model):
    def __init__(self, vqvae: Any, variance: float) -> None:
        super().__init__()
        self.vqvae, self.variance = vqvae, variance
        self.total_tracker = keras.metrics.Mean(name="loss")
        self.reconstruction_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.vq_tracker = keras.metrics.Mean(name="vqvae_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total_tracker, self.reconstruction_tracker, self.vq_tracker]

    def call(self, x: Any) -> Any:
        return self.vqvae(x)

    def train_step(self, x: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            reconstructed = self.vqvae(x)
            reconstruction = tf.reduce_mean((x - reconstructed) ** 2) / self.variance
            total = reconstruction + sum(self.vqvae.losses)
        gradients = tape.gradient(total, self.vqvae.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.vqvae.trainable_variables, strict=True))
        self.total_tracker.update_state(total)
        self.reconstruction_tracker.update_state(reconstruction)
        self.vq_tracker.update_state(sum(self.vqvae.losses))
        return {metric.name: metric.result() for metric in self.metrics}


def run(strategy: Any) -> dict[str, Any]:
    images = np.random.default_rng(18).uniform(size=(ROWS, 8, 8, 1))
    with scope(strategy):
        inputs = layers.Input((8, 8, 1))
        x = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(inputs)
        x = VectorQuantizer()(layers.Conv2D(WIDTH, 1, padding="same")(x))
        vqvae = keras.Model(inputs, layers.Conv2DTranspose(1, 3, strides=2, padding="same")(x))
        model = VQVAETrainer(vqvae, float(images.var()))
        model.compile(optimizer=keras.optimizers.Adam(1e-2))
    return results(vqvae, model.fit(batches(images), epochs=3, verbose=0))
