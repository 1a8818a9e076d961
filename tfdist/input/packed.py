"""Packs values whose shape differs from record to record into strings, which can be batched, and unpacks them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def packed(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset in which each value without a fixed shape is a string.

    Args:
        dataset: the dataset of a reader.

    Raises:
        ValueError: if a value is no tensor.
    """
    spec = dataset.element_spec
    for value in tf.nest.flatten(spec):
        if not isinstance(value, tf.TensorSpec):
            raise ValueError(
                f"expected a reader whose records are tensors, received {type(value).__name__}; convert the values in "
                "the reader, for example with tf.sparse.to_dense or to_tensor."
            )
    if all(value.shape.is_fully_defined() for value in tf.nest.flatten(spec)):
        return dataset

    def pack(*parts: Any) -> Any:
        return tf.nest.map_structure(
            lambda spec, value: value if spec.shape.is_fully_defined() else tf.io.serialize_tensor(value),
            spec,
            parts if isinstance(spec, tuple) else parts[0],
        )

    return dataset.map(pack)


def unpacked(record: Any, spec: Any) -> Any:
    """Returns a record as the reader has returned it.

    Args:
        record: a record of `packed`; a value instead of a tuple of one value.
        spec: the element_spec of the reader's dataset; None for TFRecord files.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.input.packed import packed, unpacked
        >>> words = tf.data.Dataset.from_tensors("a b").map(tf.strings.split)
        >>> record = next(iter(packed(words)))
        >>> record.shape, unpacked(record, words.element_spec).numpy().tolist()
        (TensorShape([]), [b'a', b'b'])
    """
    if spec is None:
        return record
    if isinstance(spec, tuple) and len(spec) == 1:
        spec = spec[0]
    return tf.nest.map_structure(
        lambda spec, value: (
            value
            if spec.shape.is_fully_defined()
            else tf.ensure_shape(tf.io.parse_tensor(value, spec.dtype), spec.shape)
        ),
        spec,
        record,
    )
