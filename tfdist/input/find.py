"""Which files there are, how large, and how many records each holds."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.input.index import SUFFIX, RecordIndex, count, is_gzip, read_indexes
from tfdist.input.plan import File
from tfdist.input.read import Source


def find_files(files: str | Sequence[str | File]) -> list[File]:
    """Returns the files of a pattern or a list, by name, with their sizes.

    Args:
        files: a pattern, or names, or File values, whose counts are believed. Anything that tf.io.gfile reads.

    Raises:
        ValueError: if a pattern matches nothing, a name comes twice, or a file is not there.
    """
    if isinstance(files, str):
        names: list[str | File] = [name for name in sorted(tf.io.gfile.glob(files)) if not name.endswith(SUFFIX)]
    else:
        names = list(files)
    if not names:
        raise ValueError(f"expected files for {files!r}, found none; check the pattern.")
    found: dict[str, File] = {}
    for given in names:
        file = given if isinstance(given, File) else File(name=given, size=_size(given))
        if file.name in found:
            raise ValueError(f"expected every file once, received {file.name!r} twice; leave one out.")
        found[file.name] = file
    empty = [name for name, file in found.items() if not file.size]
    if empty:
        get_logger().warning(
            "expected records in every file, received %d empty files, the first is %r; they are left out",
            len(empty),
            empty[0],
        )
    return sorted(found.values(), key=lambda file: file.name)


def _size(name: str) -> int:
    try:
        return int(tf.io.gfile.stat(name).length)
    except tf.errors.NotFoundError:
        raise ValueError(f"expected a file at {name!r}, found none; check the name.") from None


def compression_of(files: Sequence[File]) -> str:
    """Returns GZIP if the first file that is not empty begins as such files do, else nothing."""
    return next(("GZIP" if is_gzip(file.name) else "" for file in files if file.size), "")


def count_files(
    files: Sequence[File],
    source: Source,
    *,
    agree: Callable[[np.ndarray], np.ndarray] | None,
    worker: int = 0,
    num_workers: int = 1,
) -> tuple[list[File], dict[str, RecordIndex], str]:
    """Returns the files with their counts, their indexes, and where the counts are from.

    Args:
        files: found.
        source: how they are read.
        agree: adds up an array over all workers; None where there is one.
        worker: number of this worker.
        num_workers: how many there are, each of which counts a part of the files without an index.

    Raises:
        ValueError: for a file that its index does not fit, a truncated one, by name and record, and workers that see
            different files.
    """
    indexes = {} if source.reader is not None else read_indexes([file.name for file in files])
    for file in files:
        index = indexes.get(file.name)
        if index is not None and index.size != file.size:
            raise ValueError(
                f"expected {index.size} bytes in {file.name!r}, as its index says, received {file.size}; the file is "
                "truncated or was written anew: write both again, or delete the index."
            )
    unknown = [file.name not in indexes and file.records is None for file in files]
    if agree is not None:
        _check_same_files(files, agree, worker, num_workers)
        # An index that only some workers have: all of them count.
        unknown = (agree(np.array(unknown, np.int64)) > 0).tolist()
    missing = [file for file, is_unknown in zip(files, unknown, strict=True) if is_unknown]
    counts = np.zeros([len(missing)], np.int64)
    error: ValueError | None = None
    for i in range(worker, len(missing), num_workers):
        try:
            counts[i], index = _count(missing[i], source)
        except ValueError as failure:
            # The others wait for this worker's counts: they are told as well.
            counts[i], error = -1, error or failure
        else:
            if index is not None:
                indexes[missing[i].name] = index
    if agree is not None and missing:
        counts = agree(counts)
    if error is not None:
        raise error
    if (counts < 0).any():
        broken = missing[int(np.argmax(counts < 0))].name
        raise ValueError(
            f"expected whole records in {broken!r}, received a truncated or corrupt one, says the worker that counted "
            "them; write the file again, or leave it out."
        )
    counted = dict(zip([file.name for file in missing], counts.tolist(), strict=True))
    known = [
        dataclasses.replace(file, records=indexes[file.name].records if file.name in indexes else file.records)
        if file.name not in counted
        else dataclasses.replace(file, records=counted[file.name])
        for file in files
    ]
    how = "an index" if not missing else "a count" if agree is None else "counts that the workers shared"
    return known, indexes, how


def _check_same_files(
    files: Sequence[File], agree: Callable[[np.ndarray], np.ndarray], worker: int, num_workers: int
) -> None:
    """Raises ValueError on every worker if any of them has found other files, sizes or counts."""
    text = repr([(file.name, file.size, file.records) for file in files])
    seen = np.zeros([num_workers, 2], np.int64)
    seen[worker] = len(files), int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    seen = agree(seen)
    others = [i for i in range(num_workers) if (seen[i] != seen[0]).any()]
    if others:
        raise ValueError(
            f"expected the same files on every worker, received {seen[0][0]} on worker 0 and "
            f"{seen[others[0]][0]} on worker {others[0]}, or other names or sizes; give all workers the same files."
        )


def _count(file: File, source: Source) -> tuple[int, RecordIndex | None]:
    if not file.size:
        return 0, RecordIndex(records=0, size=0)
    if source.reader is None:
        index = count(file.name, compression=source.compression)
        return index.records, index
    try:
        records = source.reader(tf.constant(file.name)).reduce(tf.constant(0, tf.int64), lambda n, _: n + 1)
    except tf.errors.OpError as error:
        raise ValueError(
            f"expected records in {file.name!r}, but the reader raised {type(error).__name__}: "
            f"{str(error.message).splitlines()[0]}; mend the file, or the reader."
        ) from error
    return int(records), None
