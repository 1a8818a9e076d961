"""Image captioning: a train_step that makes one update for each caption, with a loss and an accuracy over a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
WORDS, LENGTH, CAPTIONS, WIDTH = 15, 6, 2, 6


class Captioning(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.image = layers.Dense(WIDTH, activation="tanh")
        self.embedding, self.attention = layers.Embedding(WORDS, WIDTH), layers.MultiHeadAttention(1, WIDTH)
        self.norm, self.words = layers.LayerNormalization(), layers.Dense(WORDS)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.accuracy_tracker = keras.metrics.Mean(name="acc")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.accuracy_tracker]

    def call(self, inputs: Any) -> Any:
        images, words = inputs
        state = self.embedding(words)
        state = self.norm(state + self.attention(state, self.image(images)))
        return self.words(state)

    def loss_and_accuracy(self, images: Any, captions: Any) -> Any:
        target = captions[:, 1:]
        mask = tf.math.not_equal(target, 0)
        pred = self((images, captions[:, :-1]))
        loss = keras.losses.sparse_categorical_crossentropy(target, pred, from_logits=True)
        matches = tf.math.logical_and(mask, tf.equal(target, tf.argmax(pred, axis=2)))
        mask = tf.cast(mask, loss.dtype)
        return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask), tf.reduce_sum(
            tf.cast(matches, loss.dtype)
        ) / tf.reduce_sum(mask)

    def train_step(self, data: Any) -> dict[str, Any]:
        images, captions = data
        batch_loss, batch_accuracy = 0.0, 0.0
        for number in range(CAPTIONS):
            with tf.GradientTape() as tape:
                loss, accuracy = self.loss_and_accuracy(images, captions[:, number, :])
                batch_loss += loss
                batch_accuracy += accuracy
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(batch_loss)
        self.accuracy_tracker.update_state(batch_accuracy / float(CAPTIONS))
        return {"loss": self.loss_tracker.result(), "acc": self.accuracy_tracker.result(), "last": loss}

    def test_step(self, data: Any) -> dict[str, Any]:
        images, captions = data
        pairs = [self.loss_and_accuracy(images, captions[:, number, :]) for number in range(CAPTIONS)]
        self.loss_tracker.update_state(sum(loss for loss, _ in pairs))
        self.accuracy_tracker.update_state(sum(accuracy for _, accuracy in pairs) / float(CAPTIONS))
        return {"loss": self.loss_tracker.result(), "acc": self.accuracy_tracker.result()}


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(41)
    images, captions = rng.normal(size=(ROWS, 4, 3)), rng.integers(1, WORDS, size=(ROWS, CAPTIONS, LENGTH + 1))
    # The captions of the first half of a batch are short.
    lengths = np.where(np.arange(ROWS) % 16 < 8, 2, 5) + rng.integers(0, 2, size=ROWS)
    captions[np.broadcast_to(np.arange(LENGTH + 1) > lengths[:, None, None], captions.shape)] = 0
    data = batches((images, captions))
    with scope(strategy):
        model = Captioning()
        model((images[:2], captions[:2, 0, :-1]))
        model.compile(keras.optimizers.SGD(0.3, momentum=0.9))
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0))
