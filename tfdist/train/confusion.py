"""The confusion matrix of a trained classifier, for TensorBoard."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

MOST_RECORDS = 10_000
MOST_SECONDS = 10.0
MOST_CLASSES = 20
"""A table of more classes is not readable."""

_LARGEST_SIDE = 480


def confusion_matrix(model: Any, data: tf.data.Dataset, *, num_classes: int) -> np.ndarray:
    """Returns how often each label (row) was taken for each label (column).

    Args:
        model: maps a batch of images to logits.
        data: batches of images and labels. After 10,000 records or 10 seconds, the rest is left out.
        num_classes: number of labels.

    Example:
        >>> import tensorflow as tf
        >>> data = tf.data.Dataset.from_tensors(([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]], [1, 0, 0]))
        >>> confusion_matrix(lambda logits, training: logits, data, num_classes=2).tolist()
        [[1, 1], [0, 1]]
    """
    predict = tf.function(lambda images: tf.argmax(model(images, training=False), axis=-1), reduce_retracing=True)
    matrix = np.zeros([num_classes, num_classes], np.int64)
    begun = time.monotonic()
    for images, labels in data:
        matrix += tf.math.confusion_matrix(labels, predict(images), num_classes, dtype=tf.int64).numpy()
        if matrix.sum() >= MOST_RECORDS or time.monotonic() - begun > MOST_SECONDS:
            break
    return matrix


def as_image(matrix: np.ndarray) -> np.ndarray:
    """Returns a picture of a confusion matrix: a square for each pair of labels, the darker the more frequent.

    Args:
        matrix: the confusion matrix. Each row is compared with the number of records that have its label.

    Returns:
        An array of the shape (1, height, width, 1), from 0 (all records of the label) to 1 (none).

    Example:
        >>> picture = as_image(np.array([[3, 1], [0, 4]]))
        >>> picture.shape, picture[0, 0, 0, 0].item(), picture[0, 0, -1, 0].item(), picture[0, -1, -1, 0].item()
        ((1, 480, 480, 1), 0.25, 0.75, 0.0)
    """
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = max(1, _LARGEST_SIDE // len(matrix))
    return (1 - np.kron(shares, np.ones([side, side])))[np.newaxis, :, :, np.newaxis].astype(np.float32)


def as_table(matrix: np.ndarray) -> str:
    """Returns a confusion matrix as a table in Markdown, which TensorBoard shows under Text.

    Args:
        matrix: the confusion matrix.

    Example:
        >>> print(as_table(np.array([[3, 1], [0, 4]])))
        | label | 0 | 1 |
        | --- | --- | --- |
        | 0 | 3 | 1 |
        | 1 | 0 | 4 |
    """
    labels = range(len(matrix))
    rows = [["label", *labels], ["---"] * (len(matrix) + 1), *([label, *matrix[label]] for label in labels)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def write_confusion_matrix(matrix: np.ndarray, directory: str, *, step: int) -> None:
    """Writes a confusion matrix for TensorBoard: a picture, and a table if there are at most 20 labels.

    Args:
        matrix: the confusion matrix.
        directory: directory of the run.
        step: number of training steps.
    """
    about = (
        f"{matrix.sum()} held-out records. Rows are the labels, columns the predictions, both from 0; a square is the "
        "darker the larger its share of the records of its label."
    )
    with tf.summary.create_file_writer(directory).as_default(step=step):
        tf.summary.image("confusion_matrix", as_image(matrix), description=about)
        if len(matrix) <= MOST_CLASSES:
            tf.summary.text("confusion_table", as_table(matrix), description=about)
