"""Translation with attention: loss and accuracy are sums over unmasked tokens, divided by their number."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
WORDS, LENGTH, WIDTH = 20, 6, 8


def masked_loss(y_true: Any, y_pred: Any) -> Any:
    mask = y_true != 0
    one = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    loss = one(y_true, y_pred)
    mask = tf.cast(mask, loss.dtype)
    return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)


def masked_accuracy(y_true: Any, y_pred: Any) -> Any:
    y_pred = tf.argmax(y_pred, axis=-1)
    y_true = tf.cast(y_true, y_pred.dtype)
    match, mask = tf.cast(y_true == y_pred, tf.float32), tf.cast(y_true != 0, tf.float32)
    return tf.reduce_sum(match * mask) / tf.reduce_sum(mask)


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(31)
    context, target = rng.integers(1, WORDS, size=(ROWS, LENGTH)), rng.integers(1, WORDS, size=(ROWS, LENGTH + 1))
    # The rows of the first half of a batch are short. The last row has no token that counts.
    lengths = np.where(np.arange(ROWS) % 16 < 8, 2, 5) + rng.integers(0, 2, size=ROWS)
    target[np.arange(LENGTH + 1) > lengths[:, None]] = 0
    target[-1, 1:] = 0
    data = batches(((context, target[:, :-1]), target[:, 1:]))
    with scope(strategy):
        words, before = layers.Input((LENGTH,), dtype="int32"), layers.Input((LENGTH,), dtype="int32")
        memory = layers.GRU(WIDTH, return_sequences=True)(layers.Embedding(WORDS, WIDTH)(words))
        state = layers.GRU(WIDTH, return_sequences=True)(layers.Embedding(WORDS, WIDTH)(before))
        state = layers.LayerNormalization()(state + layers.MultiHeadAttention(1, WIDTH)(state, memory))
        model = keras.Model([words, before], layers.Dense(WORDS)(state))
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), masked_loss, metrics=[masked_accuracy, masked_loss])
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0))
