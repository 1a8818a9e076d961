"""Applies parse_fn to groups of records, because one element costs tf.data more time than a short parse_fn takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.input.packed import unpacked
from tfdist.input.read import Source

# Number of records that one thread parses at a time.
CHUNK = 32


class Parser:
    """Maps vectors of records to batches of examples, all with the shapes of the first example.

    The first record that can be read is parsed at once, so that a mistake in parse_fn is reported where
    distribute_files is called.

    Args:
        parse_fn: maps one record to an example.
        files: names of the files that have records.
        source: how the files are read.

    Attributes:
        file: name of the file whose first record was parsed.

    Raises:
        ValueError: if parse_fn raises an error, or if a file's first record cannot be read.
    """

    def __init__(self, parse_fn: Callable[..., Any], files: Sequence[str], source: Source) -> None:
        self._parse_fn = parse_fn
        with tf.device("CPU:0"):
            self.file, record = _first_record(files, source)
            file, first = self.file, source.first(tf.constant(self.file))
            self._read = None if source.reader is None else source.reader(tf.constant(file)).element_spec
            try:
                example = self._call(record)
            except Exception as error:
                text = str(error).splitlines()[0] if str(error) else "no message"
                raise ValueError(
                    f"expected parse_fn to parse the first record of {file!r}, received {type(error).__name__}: {text}"
                ) from error
            self._shapes = [list(v.shape) if isinstance(v, tf.Tensor) else [] for v in tf.nest.flatten(example)]
            self._spec = first.map(lambda *parts: self._checked(_as_record(parts))).element_spec

    def __call__(self, *parts: Any) -> Any:
        """Returns a batch of examples.

        Args:
            *parts: the records: one vector, or a structure of vectors if the reader returns structures.
        """
        return tf.map_fn(self._as_specified, _as_record(parts), fn_output_signature=self._spec)

    def _call(self, record: Any) -> Any:
        record = unpacked(record, self._read)
        return self._parse_fn(*record) if isinstance(record, tuple) else self._parse_fn(record)

    def _checked(self, record: Any) -> Any:
        """Returns the example of a record; raises an error if it does not have the shapes of the first example."""
        example = self._call(record)

        def check(value: Any, shape: list[int]) -> Any:
            if not isinstance(value, tf.Tensor) or value.shape.is_fully_defined():
                return value
            same = tf.equal(tf.rank(value), len(shape))
            same = tf.cond(same, lambda: tf.reduce_all(tf.equal(tf.shape(value), shape)), lambda: False)
            text = tf.strings.format(
                f"expected parse_fn to return the shape {shape} for every record, as for the first record, received "
                "the shape {}; pad or crop the value.",
                tf.shape(value),
            )
            with tf.control_dependencies([tf.debugging.Assert(same, [text])]):
                return tf.ensure_shape(tf.identity(value), shape)

        checked = [check(v, shape) for v, shape in zip(tf.nest.flatten(example), self._shapes, strict=True)]
        return tf.nest.pack_sequence_as(example, checked)

    def _as_specified(self, record: Any) -> Any:
        """Returns the example of a record with lists and numbers converted to tensors, as Dataset.map converts them."""
        values = tf.__internal__.nest.flatten_up_to(self._spec, self._checked(record))
        specified = [
            value
            if isinstance(value, tf.__internal__.CompositeTensor)
            else tf.convert_to_tensor(value, dtype=spec.dtype)
            for value, spec in zip(values, tf.nest.flatten(self._spec), strict=True)
        ]
        return tf.nest.pack_sequence_as(self._spec, specified)


def _first_record(files: Sequence[str], source: Source) -> tuple[str, Any]:
    """Returns the name of the first file whose first record can be read, and that record."""
    for file in files:
        try:
            return file, next(iter(source.first(tf.constant(file))))
        except (tf.errors.DataLossError, StopIteration) as error:
            if not source.skip_corrupt:
                raise ValueError(
                    f"expected readable records, received a truncated or corrupt record: record 0 of {file}; write the "
                    "file again, or pass skip_corrupt=True to skip the rest of the file."
                ) from error
    raise ValueError(
        f"expected a first record that can be read in at least one file, received {len(files)} files without such a "
        "record; write the files again."
    )


def _as_record(parts: tuple[Any, ...]) -> Any:
    """Returns the single value, or the tuple that Dataset.map has spread over the arguments."""
    return parts[0] if len(parts) == 1 else parts
