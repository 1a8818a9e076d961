"""parse_fn, applied to many records at a time: tf.data spends more on an element than a short parse_fn takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.input.read import Source

# Records that one thread parses at a time.
CHUNK = 32


class Parser:
    """Maps vectors of records to batches of examples, which all have the shapes of the first one.

    Args:
        parse_fn: maps one record to an example.
        files: the first record of the first one is parsed at once, where the user watches: a mistake in parse_fn is met
            here.
        source: how files are read.

    Raises:
        ValueError: says what parse_fn raised, or which file's first record cannot be read.
    """

    def __init__(self, parse_fn: Callable[..., Any], files: Sequence[str], source: Source) -> None:
        self._parse_fn = parse_fn
        with tf.device("CPU:0"):
            self.file, record = _first_record(files, source)
            file, first = self.file, source.first(tf.constant(self.file))
            try:
                example = self._call(record)
            except Exception as error:
                text = str(error).splitlines()[0] if str(error) else "nothing more"
                raise ValueError(
                    f"expected parse_fn to take the records of {file!r}, but on the first it raised "
                    f"{type(error).__name__}: {text}; mend parse_fn."
                ) from error
            self._shapes = [list(v.shape) if isinstance(v, tf.Tensor) else [] for v in tf.nest.flatten(example)]
            self._spec = first.map(lambda *parts: self._checked(_one(parts))).element_spec

    def __call__(self, *parts: Any) -> Any:
        """Returns the examples of the records that the parts hold."""
        return tf.map_fn(self._as_specified, _one(parts), fn_output_signature=self._spec)

    def _call(self, record: Any) -> Any:
        return self._parse_fn(*record) if isinstance(record, tuple) else self._parse_fn(record)

    def _checked(self, record: Any) -> Any:
        """Says so where the shapes are not those of the first example."""
        example = self._call(record)

        def check(value: Any, shape: list[int]) -> Any:
            if not isinstance(value, tf.Tensor) or value.shape.is_fully_defined():
                return value
            same = tf.equal(tf.rank(value), len(shape))
            same = tf.cond(same, lambda: tf.reduce_all(tf.equal(tf.shape(value), shape)), lambda: False)
            changed = tf.strings.format(
                f"expected parse_fn to give shape {shape} for every record, as for the first, received {{}}; "
                "pad or crop it.",
                tf.shape(value),
            )
            with tf.control_dependencies([tf.debugging.Assert(same, [changed])]):
                return tf.ensure_shape(tf.identity(value), shape)

        checked = [check(v, shape) for v, shape in zip(tf.nest.flatten(example), self._shapes, strict=True)]
        return tf.nest.pack_sequence_as(example, checked)

    def _as_specified(self, record: Any) -> Any:
        """An example as Dataset.map gives it: lists and numbers are tensors."""
        values = tf.__internal__.nest.flatten_up_to(self._spec, self._checked(record))
        specified = [
            value
            if isinstance(value, tf.__internal__.CompositeTensor)
            else tf.convert_to_tensor(value, dtype=spec.dtype)
            for value, spec in zip(values, tf.nest.flatten(self._spec), strict=True)
        ]
        return tf.nest.pack_sequence_as(self._spec, specified)


def _first_record(files: Sequence[str], source: Source) -> tuple[str, Any]:
    """Returns the first record that can be read, and its file."""
    for file in files:
        try:
            return file, next(iter(source.first(tf.constant(file))))
        except (tf.errors.DataLossError, StopIteration) as error:
            if not source.skip_corrupt:
                raise ValueError(
                    f"expected whole records, received one that cannot be read: record 0 of {file}; write the file "
                    "again, or pass skip_corrupt=True to leave out the rest of it."
                ) from error
    raise ValueError(f"expected a record that can be read, received {len(files)} files without; write them again.")


def _one(parts: tuple[Any, ...]) -> Any:
    """Dataset.map spreads a tuple over arguments; this takes it as one."""
    return parts[0] if len(parts) == 1 else parts
