"""Ticket routing: two inputs, two outputs, and their losses, weights and metrics in dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
WORDS, DEPARTMENTS = 20, 4


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(17)
    inputs = {"title": rng.integers(0, WORDS, size=(ROWS, 5)), "tags": rng.uniform(size=(ROWS, 6)).round()}
    targets = {
        "priority": rng.integers(0, 2, size=(ROWS, 1)).astype(float),
        "department": np.eye(DEPARTMENTS)[rng.integers(0, DEPARTMENTS, size=ROWS)],
    }
    weights = {"priority": rng.uniform(size=ROWS), "department": rng.uniform(size=ROWS)}
    with scope(strategy):
        title = keras.Input((5,), name="title", dtype="int32")
        tags = keras.Input((6,), name="tags")
        words = layers.LSTM(6)(layers.Embedding(WORDS, 6)(title))
        x = layers.concatenate([words, tags])
        outputs = {
            "priority": layers.Dense(1, name="priority")(x),
            "department": layers.Dense(DEPARTMENTS, name="department")(x),
        }
        model = keras.Model({"title": title, "tags": tags}, outputs)
        model.compile(
            optimizer=keras.optimizers.RMSprop(1e-2),
            loss={
                "priority": keras.losses.BinaryCrossentropy(from_logits=True),
                "department": keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
            },
            loss_weights={"priority": 1.0, "department": 0.2},
            metrics={"priority": ["mae"], "department": ["accuracy", keras.metrics.AUC(from_logits=True, name="auc")]},
        )
    data = batches((inputs, targets, weights))
    history = model.fit(data, validation_data=batches((inputs, targets)), epochs=2, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0, return_dict=True))
