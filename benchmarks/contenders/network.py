"""The network and the data of the contenders that are written with Keras."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from common import CLASSES, INPUTS, LEARNING_RATE, MOMENTUM, initial_weights, total_steps


class Data:
    """The training set as tensors, and accuracy on the test set."""

    def __init__(self, found: argparse.Namespace) -> None:
        data = np.load(found.data)
        self._images, self._labels = tf.constant(data["x"]), tf.constant(data["y"])
        self._test_images, self._test_labels = tf.constant(data["test_x"]), tf.constant(data["test_y"])
        self.rows = len(data["x"])

    def batch(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return _scaled(tf.gather(self._images, rows)), tf.gather(self._labels, rows)

    def accuracy_of(self, model: tf.keras.Model) -> Callable[[], float]:
        @tf.function
        def right() -> tf.Tensor:
            logits = model(_scaled(self._test_images), training=False)
            return tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == tf.cast(self._test_labels, tf.int64), tf.float64))

        return lambda: float(right())


def build(found: argparse.Namespace, rows: int) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer]:
    """Returns the model with the weights that all contenders begin with, and its optimizer, not built yet.

    Args:
        found: the arguments.
        rows: of the training set.
    """
    layers = tf.keras.layers
    hidden = [layers.Dense(width, "relu") for width in found.layers]
    model = tf.keras.Sequential([layers.Input((INPUTS,)), *hidden, layers.Dense(CLASSES)])
    model.set_weights(initial_weights(found))
    steps = total_steps(found, rows)
    rate = tf.keras.optimizers.schedules.PolynomialDecay(LEARNING_RATE, steps, end_learning_rate=0.0)
    return model, tf.keras.optimizers.SGD(rate, momentum=MOMENTUM)


def _scaled(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.float32) / 255
