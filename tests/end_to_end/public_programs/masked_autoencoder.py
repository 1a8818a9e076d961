"""Masked autoencoder without call: compiled metrics, patches, nested gradients, and a schedule of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
PATCHES, MASKED, WIDTH, AREA = 16, 12, 6, 4


class Patches(layers.Layer):
    def call(self, images: Any) -> Any:
        patches = tf.image.extract_patches(images, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
        return tf.reshape(patches, (-1, PATCHES, AREA))


class PatchEncoder(layers.Layer):
    def build(self, shape: Any) -> None:
        self.mask_token = self.add_weight(shape=(1, AREA), initializer="random_normal", name="mask_token")
        self.projection = layers.Dense(WIDTH)
        self.position_embedding = layers.Embedding(PATCHES, WIDTH)
        self.projection.build((None, PATCHES, AREA))
        self.position_embedding.build((None, PATCHES))

    def call(self, patches: Any, indices: Any) -> Any:
        rows = tf.shape(patches)[0]
        positions = self.position_embedding(tf.range(PATCHES)[None])
        positions = tf.tile(positions, [rows, 1, 1])
        embedded = self.projection(patches) + positions
        mask_indices, unmask_indices = indices[:, :MASKED], indices[:, MASKED:]
        unmasked = tf.gather(embedded, unmask_indices, axis=1, batch_dims=1)
        unmasked_positions = tf.gather(positions, unmask_indices, axis=1, batch_dims=1)
        masked_positions = tf.gather(positions, mask_indices, axis=1, batch_dims=1)
        tokens = tf.repeat(self.mask_token, repeats=MASKED, axis=0)
        tokens = tf.repeat(tokens[tf.newaxis], repeats=rows, axis=0)
        return unmasked, self.projection(tokens) + masked_positions, unmasked_positions, mask_indices


def transformer(inputs: Any) -> Any:
    x = layers.LayerNormalization(epsilon=1e-6)(inputs)
    x = layers.Add()([layers.MultiHeadAttention(num_heads=2, key_dim=3)(x, x), inputs])
    return layers.Add()([layers.Dense(WIDTH, "gelu")(layers.LayerNormalization(epsilon=1e-6)(x)), x])


class MaskedAutoencoder(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.patch_layer, self.patch_encoder = Patches(), PatchEncoder()
        inputs = layers.Input((PATCHES - MASKED, WIDTH))
        self.encoder = keras.Model(inputs, layers.LayerNormalization()(transformer(inputs)))
        inputs = layers.Input((PATCHES, WIDTH))
        x = layers.Flatten()(transformer(layers.Dense(WIDTH)(inputs)))
        self.decoder = keras.Model(inputs, layers.Reshape((8, 8, 1))(layers.Dense(64, activation="sigmoid")(x)))

    def calculate_loss(self, data: Any) -> Any:
        images, indices = data
        patches = self.patch_layer(images)
        unmasked, masked, positions, mask_indices = self.patch_encoder(patches, indices)
        outputs = self.encoder(unmasked) + positions
        decoded = self.decoder(tf.concat([outputs, masked], axis=1))
        loss_patch = tf.gather(patches, mask_indices, axis=1, batch_dims=1)
        loss_output = tf.gather(self.patch_layer(decoded), mask_indices, axis=1, batch_dims=1)
        return self.compute_loss(y=loss_patch, y_pred=loss_output), loss_patch, loss_output

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            total_loss, loss_patch, loss_output = self.calculate_loss(data)
        train_vars = [
            self.patch_encoder.trainable_variables,
            self.encoder.trainable_variables,
            self.decoder.trainable_variables,
        ]
        grads = tape.gradient(total_loss, train_vars)
        pairs = []
        for grad, var in zip(grads, train_vars, strict=True):
            pairs.extend(zip(grad, var, strict=True))
        self.optimizer.apply_gradients(pairs)
        return {**self.compute_metrics(None, loss_patch, loss_output, None), "total_loss": total_loss}

    def test_step(self, data: Any) -> dict[str, Any]:
        total_loss, loss_patch, loss_output = self.calculate_loss(data)
        return {**self.compute_metrics(None, loss_patch, loss_output, None), "total_loss": total_loss}


class WarmUpCosine(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        step = tf.cast(step, tf.float64)
        cosine = 0.5 * 1e-2 * (1 + tf.cos(np.pi * (step - 3.0) / 10.0))
        return tf.where(step < 3, 3e-3 * step + 1e-4, cosine)


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(33)
    images = rng.uniform(size=(ROWS, 8, 8, 1))
    indices = np.argsort(rng.uniform(size=(ROWS, PATCHES)), axis=-1)
    with scope(strategy):
        model = MaskedAutoencoder()
        model.compile(
            optimizer=keras.optimizers.AdamW(learning_rate=WarmUpCosine(), weight_decay=1e-3),
            loss=keras.losses.MeanSquaredError(),
            metrics=["mae"],
        )
    data = batches((images, indices))
    history = model.fit(data, validation_data=batches((images[:21], indices[:21])), epochs=2, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0, return_dict=True))
