"""Knowledge distillation: compute_loss compares a student with a frozen teacher that was trained before."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
ALPHA, TEMPERATURE = 0.1, 3.0


class Distiller(keras.Model):
    def __init__(self, student: Any, teacher: Any) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher
        self.distillation_tracker = keras.metrics.Mean(name="distillation_loss")

    def compile(self, optimizer: Any, metrics: Any, student_loss_fn: Any, distillation_loss_fn: Any) -> None:
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn, self.distillation_loss_fn = student_loss_fn, distillation_loss_fn

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any) -> Any:
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            tf.nn.softmax(teacher_pred / TEMPERATURE, axis=1), tf.nn.softmax(y_pred / TEMPERATURE, axis=1)
        )
        self.distillation_tracker.update_state(distillation_loss)
        return ALPHA * student_loss + (1 - ALPHA) * distillation_loss * TEMPERATURE**2

    def call(self, x: Any, training: Any = None) -> Any:
        return self.student(x, training=training)


def classifier(width: int) -> Any:
    x = layers.Flatten()(inputs := layers.Input((6, 6, 1)))
    return keras.Model(inputs, layers.Dense(4)(layers.Dense(width, activation="relu")(x)))


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(8)
    data = batches((rng.normal(size=(ROWS, 6, 6, 1)), rng.integers(0, 4, size=ROWS)))
    with scope(strategy):
        teacher, student = classifier(16), classifier(4)
        teacher.compile(
            optimizer=keras.optimizers.Adam(1e-2),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
    taught = teacher.fit(data, epochs=2, verbose=0)
    with scope(strategy):
        teacher.trainable = False
        model = Distiller(student, teacher)
        model.compile(
            optimizer=keras.optimizers.Adam(1e-2),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
            student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            distillation_loss_fn=keras.losses.KLDivergence(),
        )
    history = model.fit(data, epochs=2, verbose=0)
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    return results([teacher, student], history, evaluated, taught=taught.history)
