"""Logs that are results of metrics with other names, that are computed from results, or that are nested.

keras.io's VAE reports a Mean with the name "total_loss" as "loss", and language models report the perplexity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


class Rates(keras.metrics.Metric):
    """A metric that has several results and metrics of its own."""

    def __init__(self, name: str = "rates", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.recall = keras.metrics.Recall(name="recall")
        self.precision = keras.metrics.Precision(name="precision")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.recall.update_state(y_true, y_pred, sample_weight)
        self.precision.update_state(y_true, y_pred, sample_weight)

    def result(self) -> Any:
        p, r = self.precision.result(), self.recall.result()
        return {"recall": r, "precision": p, "f1": tf.math.divide_no_nan(2 * p * r, p + r)}

    def reset_state(self) -> None:
        self.recall.reset_state()
        self.precision.reset_state()


class Tracked(keras.Model):
    """A model with trackers of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.total = keras.metrics.Mean(name="total_loss")
        self.right = keras.metrics.BinaryAccuracy(name="accuracy")
        self.rates = Rates()

    @property
    def metrics(self) -> list[Any]:
        return [self.total, self.right, self.rates]

    def _logs(self) -> dict[str, Any]:
        loss, rates = self.total.result(), self.rates.result()
        percent = 100 * self.right.result()
        return {"loss": loss, "perplexity": tf.exp(loss), "accuracy": percent, "f1": rates["f1"], "all": loss + percent}

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean(tf.square(y - y_pred))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self._updated(y, y_pred)

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        return self._updated(y, self(x, training=False))

    def _updated(self, y: Any, y_pred: Any) -> dict[str, Any]:
        self.total.update_state(tf.reduce_mean(tf.square(y - y_pred)))
        self.right.update_state(y, y_pred)
        self.rates.update_state(y, y_pred)
        return self._logs()


class Listed(keras.Model):
    """A model whose step lists the results of the metrics that it was compiled with, beside its own loss."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean(tf.square(y - y_pred))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        logs = {}
        for metric in self.metrics:
            if metric.name != "loss":
                metric.update_state(y, y_pred)
            logs[metric.name] = metric.result()
        return {**logs, "loss": loss}


def built(kind: Any) -> Any:
    inputs = layers.Input((4,))
    return kind(inputs, layers.Dense(1, activation="sigmoid")(layers.Dense(5, activation="tanh")(inputs)))


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(41)
    data = batches((rng.normal(size=(ROWS, 4)), rng.integers(0, 2, size=(ROWS, 1)).astype(float)))
    found: dict[str, Any] = {}
    models = []
    for name, kind, options in (
        ("tracked", Tracked, {}),
        ("tracked, several steps", Tracked, {"steps_per_execution": 3}),
        ("tracked, eager", Tracked, {"run_eagerly": True}),
        ("compiled", keras.Model, {"loss": "mse", "metrics": ["mae", Rates]}),
        ("listed", Listed, {"loss": "mse", "metrics": ["mae"]}),
    ):
        with scope(strategy):
            made = [one() if isinstance(one, type) else one for one in options.pop("metrics", [])]
            model = built(kind)
            model.compile(optimizer=keras.optimizers.Adam(1e-2, epsilon=1e-3), metrics=made or None, **options)
        history = model.fit(data, epochs=2, verbose=0, validation_data=data).history
        found |= {f"{name}: {log}": values for log, values in history.items()}
        found[f"{name}: evaluated"] = model.evaluate(data, verbose=0, return_dict=True)
        models.append(model)
    return results(models, **found)
