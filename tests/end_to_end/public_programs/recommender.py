"""Collaborative filtering: embeddings with sparse gradients and regularizers, and a dot product in a model's call."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
USERS, MOVIES, WIDTH = 12, 9, 4


class RecommenderNet(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        l2 = keras.regularizers.l2(1e-3)
        self.users = layers.Embedding(USERS, WIDTH, embeddings_initializer="he_normal", embeddings_regularizer=l2)
        self.user_bias = layers.Embedding(USERS, 1)
        self.movies = layers.Embedding(MOVIES, WIDTH, embeddings_initializer="he_normal", embeddings_regularizer=l2)
        self.movie_bias = layers.Embedding(MOVIES, 1)

    def call(self, pairs: Any) -> Any:
        user, movie = pairs[:, 0], pairs[:, 1]
        dot = tf.reduce_sum(self.users(user) * self.movies(movie), axis=1, keepdims=True)
        return tf.nn.sigmoid(dot + self.user_bias(user) + self.movie_bias(movie))


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(20)
    pairs = np.stack([rng.integers(0, USERS, size=ROWS), rng.integers(0, MOVIES, size=ROWS)], axis=1)
    data = batches((pairs, rng.uniform(size=(ROWS, 1))))
    with scope(strategy):
        model = RecommenderNet()
        model.compile(optimizer=keras.optimizers.SGD(0.5, momentum=0.9), loss=keras.losses.BinaryCrossentropy())
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0))
