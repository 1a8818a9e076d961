"""Text classification with a transformer: token and position embeddings, padding that is masked, several heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
WORDS, LENGTH, WIDTH = 30, 7, 8


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = layers.Embedding(WORDS, WIDTH, mask_zero=True)
        self.positions = layers.Embedding(LENGTH, WIDTH)

    def call(self, x: Any) -> Any:
        return self.tokens(x) + self.positions(tf.range(LENGTH))

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return self.tokens.compute_mask(x)


class TransformerBlock(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True
        self.attention = layers.MultiHeadAttention(num_heads=2, key_dim=4)
        self.feed_forward = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(WIDTH)])
        self.norm1, self.norm2 = layers.LayerNormalization(epsilon=1e-6), layers.LayerNormalization(epsilon=1e-6)

    def call(self, x: Any, mask: Any = None) -> Any:
        pairs = None if mask is None else mask[:, None, :]
        x = self.norm1(x + self.attention(x, x, attention_mask=pairs))
        return self.norm2(x + self.feed_forward(x))


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(13)
    texts = rng.integers(1, WORDS, size=(ROWS, LENGTH))
    texts[np.arange(LENGTH) >= rng.integers(2, LENGTH + 1, size=(ROWS, 1))] = 0
    data = batches((texts, rng.integers(0, 2, size=ROWS)))
    with scope(strategy):
        inputs = layers.Input((LENGTH,), dtype="int32")
        x = TransformerBlock()(TokenAndPositionEmbedding()(inputs))
        x = layers.GlobalAveragePooling1D()(x)
        model = keras.Model(inputs, layers.Dense(2, activation="softmax")(layers.Dense(8, activation="relu")(x)))
        model.compile(
            optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0))
