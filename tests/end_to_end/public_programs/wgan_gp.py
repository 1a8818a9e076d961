"""WGAN-GP: two critic steps for each generator step, a penalty on gradients, and losses that compile is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
LATENT, CRITIC_STEPS, PENALTY = 6, 2, 10.0


class WGAN(keras.Model):
    def __init__(self, critic: Any, generator: Any) -> None:
        super().__init__()
        self.critic, self.generator = critic, generator

    def compile(self, d_optimizer: Any, g_optimizer: Any, d_loss_fn: Any, g_loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.d_loss_fn, self.g_loss_fn = d_loss_fn, g_loss_fn

    def gradient_penalty(self, real: Any, fake: Any, alpha: Any) -> Any:
        interpolated = real + alpha * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(interpolated)
            prediction = self.critic(interpolated, training=True)
        gradients = tape.gradient(prediction, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(gradients), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, data: Any) -> dict[str, Any]:
        real, latents, alphas = data["real"], data["latents"], data["alphas"]
        for i in range(CRITIC_STEPS):
            with tf.GradientTape() as tape:
                fake = self.generator(latents[:, i], training=True)
                d_cost = self.d_loss_fn(self.critic(real, training=True), self.critic(fake, training=True))
                penalty = self.gradient_penalty(real, fake, alphas[:, i, None, None, None])
                d_loss = d_cost + PENALTY * penalty
            weights = self.critic.trainable_variables
            self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            fake = self.generator(latents[:, -1], training=True)
            g_loss = self.g_loss_fn(self.critic(fake, training=True))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def make_model() -> Any:
    critic = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 5, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    generator = keras.Sequential(
        [
            layers.Input((LATENT,)),
            layers.Dense(4 * 4 * 2, use_bias=False),
            layers.LeakyReLU(0.2),
            layers.Reshape((4, 4, 2)),
            layers.UpSampling2D(2),
            layers.Conv2D(1, 3, padding="same", activation="tanh"),
        ]
    )
    return WGAN(critic, generator)


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    latents = rng.normal(size=(ROWS, CRITIC_STEPS + 1, LATENT))
    real, alphas = rng.uniform(-1, 1, size=(ROWS, 8, 8, 1)), rng.uniform(size=(ROWS, CRITIC_STEPS))
    with scope(strategy):
        model = make_model()
        model.compile(
            d_optimizer=keras.optimizers.Adam(2e-3, beta_1=0.5, beta_2=0.9),
            g_optimizer=keras.optimizers.Adam(2e-3, beta_1=0.5, beta_2=0.9),
            d_loss_fn=lambda real_logits, fake_logits: tf.reduce_mean(fake_logits) - tf.reduce_mean(real_logits),
            g_loss_fn=lambda fake_logits: -tf.reduce_mean(fake_logits),
        )
    data = batches({"real": real, "latents": latents, "alphas": alphas})
    return results(model, model.fit(data, epochs=2, verbose=0))
