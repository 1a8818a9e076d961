"""Variational autoencoder whose losses are sums over the images of a batch, as in many programs, and a mean."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.end_to_end.public_programs import vae

keras = tf.keras


class SummedVAE(vae.VAE):
    def losses_of(self, data: Any) -> tuple[Any, Any]:
        mean, log_variance, z = self.encoder([data["images"], data["noise"]])
        pixels = keras.losses.binary_crossentropy(data["images"], self.decoder(z))
        kl = -0.5 * tf.reduce_sum(1 + log_variance - tf.square(mean) - tf.exp(log_variance))
        return tf.reduce_sum(pixels) / 64 + tf.reduce_mean(pixels), 0.01 * kl


def run(strategy: Any) -> dict[str, Any]:
    return vae.run(strategy, SummedVAE)
