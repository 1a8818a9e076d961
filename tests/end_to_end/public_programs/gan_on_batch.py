"""GAN of two compiled models, trained by a loop of train_on_batch and test_on_batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import BATCH, ROWS, results, scope

keras = tf.keras
layers = keras.layers
LATENT = 5


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(24)
    images, noise = rng.uniform(-1, 1, size=(ROWS, 12)), rng.normal(size=(2, ROWS, LATENT))
    with scope(strategy):
        discriminator = keras.Sequential(
            [layers.Input((12,)), layers.Dense(8), layers.LeakyReLU(), layers.Dense(1, activation="sigmoid")]
        )
        discriminator.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=["accuracy"])
        generator = keras.Sequential([layers.Input((LATENT,)), layers.Dense(8, "relu"), layers.Dense(12, "tanh")])
        # The combined model trains the generator alone.
        frozen = keras.models.clone_model(discriminator)
        frozen.trainable = False
        latent = layers.Input((LATENT,))
        combined = keras.Model(latent, frozen(generator(latent)))
        combined.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy")
    d_losses, fake_losses, g_losses = [], [], []
    for start in range(0, ROWS, BATCH):
        rows = slice(start, start + BATCH)
        real, fake = images[rows], np.asarray(generator(noise[0, rows]))
        ones, zeros = np.ones((len(real), 1)), np.zeros((len(real), 1))
        d_losses.append(discriminator.train_on_batch(real, ones)[0])
        fake_losses.append(discriminator.train_on_batch(fake, zeros)[0])
        frozen.set_weights(discriminator.get_weights())
        g_losses.append(combined.train_on_batch(noise[1, rows], ones))
    tested = discriminator.test_on_batch(images[:BATCH], np.ones((BATCH, 1)))
    losses = {"d_losses": d_losses, "fake_losses": fake_losses, "g_losses": g_losses}
    return results([discriminator, generator], **losses, tested=tested)
