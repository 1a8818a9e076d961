"""Adversarial training: inputs that move along the gradient of the loss, or along its sign (FGSM).

The gradient itself is that of a mean over the batch, so that its size depends on the number of rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class Adversarial(keras.Model):
    def direction(self, gradient: Any) -> Any:
        return 0.05 * tf.sign(gradient)

    def attacked(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        return tf.stop_gradient(x + self.direction(tape.gradient(loss, x)))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        attacked = self.attacked(x, y)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = 0.7 * self.compute_loss(y=y, y_pred=y_pred)
            loss += 0.3 * self.compute_loss(y=y, y_pred=self(attacked, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        next(metric for metric in self.metrics if metric.name == "loss").update_state(loss)
        return self.compute_metrics(x, y, y_pred, None)

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        attacked = self.attacked(x, y)
        y_pred = self(attacked, training=False)
        self.compute_loss(y=y, y_pred=y_pred)
        return self.compute_metrics(attacked, y, y_pred, None)


class AlongTheGradient(Adversarial):
    def direction(self, gradient: Any) -> Any:
        return 0.5 * gradient


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(38)
    data = batches((rng.normal(size=(ROWS, 6)), rng.integers(0, 3, size=ROWS)))
    models, found = [], {}
    for kind in (Adversarial, AlongTheGradient):
        with scope(strategy):
            inputs = layers.Input((6,))
            model = kind(inputs, layers.Dense(3)(layers.Dense(8, activation="tanh")(inputs)))
            model.compile(
                optimizer=keras.optimizers.Adam(1e-2),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )
        history = model.fit(data, epochs=2, verbose=0).history
        found |= {f"{kind.__name__}: {log}": values for log, values in history.items()}
        found[f"{kind.__name__}: evaluated"] = model.evaluate(data, verbose=0)
        models.append(model)
    return results(models, **found)
