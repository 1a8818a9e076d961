"""Network and data of the contenders that use Keras."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from common import CLASSES, INPUTS, LEARNING_RATE, MOMENTUM, initial_weights, total_steps


class Data:
    """The training set as tensors, and the accuracy on the test set.

    Args:
        arguments: the contender's arguments.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        data = np.load(arguments.data)
        self._images, self._labels = tf.constant(data["x"]), tf.constant(data["y"])
        self._test_images, self._test_labels = tf.constant(data["test_x"]), tf.constant(data["test_y"])
        self.rows = len(data["x"])

    def batch(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the images and labels of the given rows of the training set."""
        return _scaled(tf.gather(self._images, rows)), tf.gather(self._labels, rows)

    def accuracy_of(self, model: tf.keras.Model) -> Callable[[], float]:
        """Returns a function that computes the model's accuracy on the test set."""

        @tf.function
        def accuracy() -> tf.Tensor:
            logits = model(_scaled(self._test_images), training=False)
            return tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == tf.cast(self._test_labels, tf.int64), tf.float64))

        return lambda: float(accuracy())


def build(
    arguments: argparse.Namespace, rows: int, *, rate: float = LEARNING_RATE
) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer]:
    """Returns the model with the initial weights of all contenders, and its optimizer, which is not built yet.

    Args:
        arguments: the contender's arguments.
        rows: number of rows of the training set.
        rate: the learning rate at the beginning.
    """
    layers = tf.keras.layers
    hidden = [layers.Dense(width, "relu") for width in arguments.layers]
    model = tf.keras.Sequential([layers.Input((INPUTS,)), *hidden, layers.Dense(CLASSES)])
    model.set_weights(initial_weights(arguments))
    steps = total_steps(arguments, rows)
    decay = tf.keras.optimizers.schedules.PolynomialDecay(rate, steps, end_learning_rate=0.0)
    return model, tf.keras.optimizers.SGD(decay, momentum=MOMENTUM)


def _scaled(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.float32) / 255
