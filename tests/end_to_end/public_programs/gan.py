"""GAN with convolutions: two optimizers, two trackers, and one Loss object that the train_step calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
LATENT = 6


class GAN(keras.Model):
    def __init__(self, discriminator: Any, generator: Any) -> None:
        super().__init__()
        self.discriminator, self.generator = discriminator, generator

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, data: Any) -> dict[str, Any]:
        real, latent, second_latent = data["real"], data["latents"][:, 0], data["latents"][:, 1]
        noise = data["label_noise"]
        combined = tf.concat([self.generator(latent), real], axis=0)
        rows = tf.shape(real)[0]
        labels = tf.concat([tf.ones((rows, 1), real.dtype), tf.zeros((rows, 1), real.dtype)], axis=0)
        labels += 0.05 * tf.concat([noise[:, :1], noise[:, 1:]], axis=0)

        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))

        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(second_latent))
            g_loss = self.loss_fn(tf.zeros((rows, 1), real.dtype), predictions)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))

        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


def make_model() -> Any:
    discriminator = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 4, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    generator = keras.Sequential(
        [
            layers.Input((LATENT,)),
            layers.Dense(4 * 4 * 4),
            layers.Reshape((4, 4, 4)),
            layers.Conv2DTranspose(4, 4, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Conv2D(1, 5, padding="same", activation="sigmoid"),
        ]
    )
    return GAN(discriminator, generator)


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    data = {
        "real": rng.uniform(size=(ROWS, 8, 8, 1)),
        "latents": rng.normal(size=(ROWS, 2, LATENT)),
        "label_noise": rng.uniform(size=(ROWS, 2)),
    }
    with scope(strategy):
        model = make_model()
        model.compile(
            d_optimizer=keras.optimizers.Adam(2e-3),
            g_optimizer=keras.optimizers.SGD(5e-2, momentum=0.5),
            loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
        )
    return results(model, model.fit(batches(data), epochs=2, verbose=0))
