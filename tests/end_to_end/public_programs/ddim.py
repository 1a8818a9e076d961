"""Diffusion model: an adapted Normalization layer, noise from the data, and a second network that follows slowly."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
ops = getattr(keras, "ops", keras.backend)


def network() -> Any:
    noisy, variances = layers.Input((8, 8, 1)), layers.Input((1, 1, 1))
    x = layers.Concatenate()([layers.Conv2D(4, 1)(noisy), layers.UpSampling2D(8)(variances)])
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    return keras.Model([noisy, variances], layers.Conv2D(1, 1, kernel_initializer="zeros")(x))


class DiffusionModel(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network, self.ema_network = network(), network()
        self.ema_network.set_weights(self.network.get_weights())

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def losses_of(self, data: Any, net: Any) -> tuple[Any, Any]:
        images, noises, times = self.normalizer(data["images"]), data["noises"], data["times"][:, None, None, None]
        signal_rates, noise_rates = ops.cos(times), ops.sin(times)
        noisy = signal_rates * images + noise_rates * noises
        predicted = net([noisy, noise_rates**2])
        predicted_images = (noisy - noise_rates * predicted) / signal_rates
        return self.loss(noises, predicted), self.loss(images, predicted_images)

    def tracked(self, noise_loss: Any, image_loss: Any) -> dict[str, Any]:
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            noise_loss, image_loss = self.losses_of(data, self.network)
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(noise_loss, weights), weights, strict=True))
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema_weight.assign(0.9 * ema_weight + (1 - 0.9) * weight)
        return self.tracked(noise_loss, image_loss)

    def test_step(self, data: Any) -> dict[str, Any]:
        return self.tracked(*self.losses_of(data, self.ema_network))


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(19)
    images = rng.uniform(1, 3, size=(ROWS, 8, 8, 1))
    data = {"images": images, "noises": rng.normal(size=images.shape), "times": rng.uniform(0.1, 1.4, size=ROWS)}
    with scope(strategy):
        model = DiffusionModel()
        model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=keras.losses.MeanAbsoluteError())
    model.normalizer.adapt(batches(images))
    history = model.fit(batches(data), validation_data=batches(data), epochs=2, verbose=0)
    return results(model, history, model.evaluate(batches(data), verbose=0))
