"""Imbalanced classes: a train_step that hands sample weights on, with class_weight, precision and recall."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class CustomModel(keras.Model):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, sample_weight = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {metric.name: metric.result() for metric in self.metrics}


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(15)
    data = batches((rng.normal(size=(ROWS, 6)), (rng.uniform(size=(ROWS, 1)) < 0.2).astype(int)))
    with scope(strategy):
        inputs = layers.Input((6,))
        x = layers.Dense(8, activation="relu")(inputs)
        model = CustomModel(inputs, layers.Dense(1, activation="sigmoid", bias_initializer="ones")(x))
        model.compile(
            optimizer=keras.optimizers.Adam(1e-2),
            loss=keras.losses.BinaryCrossentropy(),
            metrics=[keras.metrics.Precision(name="precision"), keras.metrics.Recall(name="recall")],
        )
    history = model.fit(data, epochs=3, class_weight={0: 0.6, 1: 3.0}, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0))
