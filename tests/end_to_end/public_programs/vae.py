"""Variational autoencoder: a sampling layer, and a train_step that takes the means of its losses itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
ops = getattr(keras, "ops", keras.backend)
LATENT = 2


class Sampling(layers.Layer):
    def call(self, inputs: Any) -> Any:
        mean, log_variance, noise = inputs
        return mean + ops.exp(0.5 * log_variance) * noise


class VAE(keras.Model):
    def __init__(self, encoder: Any, decoder: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.total_tracker = keras.metrics.Mean(name="loss")
        self.reconstruction_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total_tracker, self.reconstruction_tracker, self.kl_tracker]

    def losses_of(self, data: Any) -> tuple[Any, Any]:
        mean, log_variance, z = self.encoder([data["images"], data["noise"]])
        pixels = keras.losses.binary_crossentropy(data["images"], self.decoder(z))
        reconstruction = ops.mean(ops.sum(pixels, axis=(1, 2)))
        kl = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        return reconstruction, ops.mean(ops.sum(kl, axis=1))

    def tracked(self, reconstruction: Any, kl: Any) -> dict[str, Any]:
        self.total_tracker.update_state(reconstruction + kl)
        self.reconstruction_tracker.update_state(reconstruction)
        self.kl_tracker.update_state(kl)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            reconstruction, kl = self.losses_of(data)
            loss = reconstruction + kl
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.tracked(reconstruction, kl)

    def test_step(self, data: Any) -> dict[str, Any]:
        return self.tracked(*self.losses_of(data))


def make_model() -> Any:
    images, noise = layers.Input((8, 8, 1)), layers.Input((LATENT,))
    x = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(images)
    x = layers.Dense(8, activation="relu")(layers.Flatten()(x))
    mean, log_variance = layers.Dense(LATENT, name="mean")(x), layers.Dense(LATENT, name="log_variance")(x)
    encoder = keras.Model([images, noise], [mean, log_variance, Sampling()([mean, log_variance, noise])])
    latent = layers.Input((LATENT,))
    x = layers.Reshape((4, 4, 4))(layers.Dense(4 * 4 * 4, activation="relu")(latent))
    decoder = keras.Model(latent, layers.Conv2DTranspose(1, 3, 2, activation="sigmoid", padding="same")(x))
    return VAE(encoder, decoder)


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    data = batches({"images": rng.uniform(size=(ROWS, 8, 8, 1)), "noise": rng.normal(size=(ROWS, LATENT))})
    with scope(strategy):
        model = make_model()
        model.compile(optimizer=keras.optimizers.Adam(1e-2))
    history = model.fit(data, epochs=2, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0, return_dict=True))
