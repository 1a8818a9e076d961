"""The datasets of `tfdist bench input`: JPEG images that are decoded and augmented, and small records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """A dataset of records and the training steps that read it.

    Attributes:
        name: "jpeg" or "small".
        records: number of records.
        files: number of files that the records are divided among.
        batch: global batch size.
        steps: number of steps that are timed.
        features: number of values of a parsed example.
        example: function from the number of a record to the serialized record.
        parse: function from a serialized record to (features, label).
    """

    name: str
    records: int
    files: int
    batch: int
    steps: int
    features: int
    example: Callable[[int], bytes]
    parse: Callable[[tf.Tensor], Any]

    def examples(self) -> Iterator[bytes]:
        """Returns all serialized records."""
        return map(self.example, range(self.records))


def _serialize(**features: tf.train.Feature) -> bytes:
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def _label(number: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 10]))


def _small_example(number: int) -> bytes:
    values = np.random.default_rng(number).normal(size=32)
    return _serialize(x=tf.train.Feature(float_list=tf.train.FloatList(value=values)), y=_label(number))


def _parse_small(record: tf.Tensor) -> Any:
    spec = {"x": tf.io.FixedLenFeature([32], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, spec)
    return example["x"], example["y"]


def _jpeg_example(number: int) -> bytes:
    tiles = np.random.default_rng(number).integers(0, 255, (16, 16, 3))
    image = np.kron(tiles, np.ones((14, 14, 1))).astype("uint8")
    return _serialize(
        x=tf.train.Feature(bytes_list=tf.train.BytesList(value=[tf.io.encode_jpeg(image).numpy()])), y=_label(number)
    )


def _parse_jpeg(record: tf.Tensor) -> Any:
    spec = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, spec)
    image = tf.io.decode_jpeg(example["x"], 3)
    image = tf.image.random_flip_left_right(tf.image.random_crop(image, [192, 192, 3]))
    image = tf.image.resize(tf.cast(image, tf.float32) / 255, [64, 64])
    return tf.reshape(image, [64 * 64 * 3]), example["y"]


def handwritten_pipeline(work: Workload, pattern: str, *, training: bool = True) -> tf.data.Dataset:
    """Returns the fastest plain tf.data pipeline: interleaved, shuffled, parsed in parallel and prefetched.

    Args:
        work: the workload.
        pattern: files of the dataset.
        training: whether to shuffle and repeat the records.
    """
    files = tf.data.Dataset.list_files(pattern, seed=1)
    data = files.interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE)
    if training:
        data = data.shuffle(10_000, seed=1).repeat()
    data = data.map(work.parse, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(work.batch, drop_remainder=training).prefetch(tf.data.AUTOTUNE)


WORKLOADS = {
    "jpeg": Workload(
        name="jpeg",
        records=4_000,
        files=16,
        batch=64,
        steps=60,
        features=64 * 64 * 3,
        example=_jpeg_example,
        parse=_parse_jpeg,
    ),
    "small": Workload(
        name="small",
        records=200_000,
        files=16,
        batch=512,
        steps=300,
        features=32,
        example=_small_example,
        parse=_parse_small,
    ),
}
