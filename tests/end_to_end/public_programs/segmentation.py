"""Segmentation: a Dice loss over the whole batch beside a cross-entropy, and metrics that are no means over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers


def dice_coefficient(y_true: Any, y_pred: Any, smooth: float = 1.0) -> Any:
    true, pred = tf.reshape(y_true, [-1]), tf.reshape(y_pred, [-1])
    intersection = tf.reduce_sum(true * pred)
    return (2.0 * intersection + smooth) / (tf.reduce_sum(true) + tf.reduce_sum(pred) + smooth)


def bce_dice_loss(y_true: Any, y_pred: Any) -> Any:
    return keras.losses.BinaryCrossentropy()(y_true, y_pred) + 1.0 - dice_coefficient(y_true, y_pred)


def iou(y_true: Any, y_pred: Any) -> Any:
    intersection = tf.reduce_sum(tf.abs(y_true * y_pred), axis=[1, 2, 3])
    union = tf.reduce_sum(y_true, [1, 2, 3]) + tf.reduce_sum(y_pred, [1, 2, 3]) - intersection
    return tf.reduce_mean((intersection + 1.0) / (union + 1.0), axis=0)


def f1(y_true: Any, y_pred: Any) -> Any:
    positives = tf.reduce_sum(tf.round(tf.clip_by_value(y_true * y_pred, 0, 1)))
    precision = positives / (tf.reduce_sum(tf.round(y_pred)) + 1e-7)
    recall = positives / (tf.reduce_sum(tf.round(y_true)) + 1e-7)
    return 2 * precision * recall / (precision + recall + 1e-7)


def root_mean_squared_error(y_true: Any, y_pred: Any) -> Any:
    return tf.sqrt(tf.reduce_mean(tf.square(y_pred - y_true)))


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(37)
    images = rng.normal(size=(ROWS, 6, 6, 2))
    # Large objects in the first half of a batch, small ones in the second.
    sizes = np.where(np.arange(ROWS) % 16 < 8, 4, 1)[:, None, None, None]
    masks = (
        (np.indices((6, 6)).max(axis=0)[None, :, :, None] < sizes) ^ (rng.uniform(size=(ROWS, 6, 6, 1)) < 0.1)
    ) * 1.0
    data = batches((images, masks))
    with scope(strategy):
        inputs = layers.Input((6, 6, 2))
        x = layers.Conv2D(4, 3, padding="same", activation="tanh")(inputs)
        small = layers.Conv2D(4, 3, padding="same", activation="tanh")(layers.MaxPooling2D()(x))
        x = layers.concatenate([x, layers.UpSampling2D()(small)])
        model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
        metrics = [dice_coefficient, iou, f1, root_mean_squared_error]
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), bce_dice_loss, metrics=metrics)
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    return results(model, history, model.evaluate(data, verbose=0))
