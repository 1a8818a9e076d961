"""Finds files, their sizes, and the number of records in each file."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist._paths import text_of_path
from tfdist.input.index import SUFFIX, RecordIndex, count, is_gzip, read_indexes
from tfdist.input.plan import File
from tfdist.input.read import Source

# Returns the sum of the arrays of all workers. Collective: every worker calls it.
SumOverWorkers = Callable[[np.ndarray], np.ndarray]
# A pattern, or names, or File values.
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str] | File]
# Names such as those of write_tfrecords and TensorFlow Datasets: the number of a file, and how many files there are.
_NUMBERED = re.compile(r"(.*-)\d+(-of-\d+)(?!\d)(.*)", re.DOTALL)


def find_files(files: Files) -> list[File]:
    """Returns the files of a pattern or a list, with their sizes, ordered by name.

    Args:
        files: a pattern, or names, or File values, which are used as they are. tf.io.gfile must be able to read them.

    Raises:
        ValueError: if no file matches the pattern, if it matches two sets of numbered files, if a file is listed twice,
            does not exist or is a directory.
    """
    names: list[str | File]
    if isinstance(files, (str, os.PathLike)):
        pattern = text_of_path(files)
        matched = [name for name in sorted(tf.io.gfile.glob(pattern)) if not name.endswith(SUFFIX)]
        if not matched:
            raise ValueError(f"expected files that match {pattern!r}, received none; check the pattern.")
        sets = _two_sets(matched)
        if sets:
            raise ValueError(
                f"expected one set of files that match {pattern!r}, received {sets[0]!r} and {sets[1]!r}, which belong "
                "to two sets of the same name; delete the old set, or write the number of files in the pattern."
            )
        names = list(matched)
    else:
        names = [file if isinstance(file, File) else text_of_path(file) for file in files]
        if not names:
            raise ValueError("expected at least one file, received an empty list.")
    found: dict[str, File] = {}
    for given in names:
        file = given if isinstance(given, File) else File(name=given, size=_size(given))
        if file.name in found:
            raise ValueError(f"expected every file once, received {file.name!r} twice.")
        found[file.name] = file
    empty = [name for name, file in found.items() if not file.size]
    if empty:
        get_logger().warning(
            "expected records in every file, received %d empty files, which are left out; the first is %r",
            len(empty),
            empty[0],
        )
    return sorted(found.values(), key=lambda file: file.name)


def _two_sets(names: Sequence[str]) -> tuple[str, str] | None:
    """Returns two files of one name that belong to sets of another number of files; None if there are none."""
    sets: dict[tuple[str, str], tuple[str, str]] = {}
    for name in names:
        parts = _NUMBERED.fullmatch(name)
        if parts is not None:
            total, first = sets.setdefault((parts[1], parts[3]), (parts[2], name))
            if total != parts[2]:
                return first, name
    return None


def _size(name: str) -> int:
    try:
        found = tf.io.gfile.stat(name)
    except tf.errors.NotFoundError:
        raise ValueError(f"expected a file at {name!r}, received none; check the name.") from None
    if found.is_directory:
        pattern = f"{name.rstrip('/')}/*.tfrecord"
        raise ValueError(f"expected a file at {name!r}, received a directory; write a pattern such as {pattern!r}.")
    return int(found.length)


def compression_of(files: Sequence[File]) -> str:
    """Returns "GZIP" if the first file that is not empty is a GZIP file, else ""."""
    return next(("GZIP" if is_gzip(file.name) else "" for file in files if file.size), "")


def indexes_of(files: Sequence[File], source: Source) -> dict[str, RecordIndex]:
    """Returns the indexes of the files that have one, by name.

    Args:
        files: files with their sizes.
        source: how the files are read. Files of a reader have no index.

    Raises:
        ValueError: if a file does not have the size that its index states, or if an index cannot be read.
    """
    indexes = {} if source.reader is not None else read_indexes([file.name for file in files])
    for file in files:
        index = indexes.get(file.name)
        if index is not None and index.size != file.size:
            raise ValueError(
                f"expected {index.size} bytes in {file.name!r}, as its index states, received {file.size}; write the "
                "file and its index again, or delete the index if the file is complete."
            )
    return indexes


def count_files(
    files: Sequence[File],
    source: Source,
    *,
    sum_over_workers: SumOverWorkers | None,
    worker: int = 0,
    num_workers: int = 1,
    indexes: dict[str, RecordIndex] | None = None,
) -> tuple[list[File], dict[str, RecordIndex], str]:
    """Returns the files with their numbers of records, their indexes, and how the records were counted.

    Args:
        files: files with their sizes, the same on every worker.
        source: how the files are read.
        sum_over_workers: returns the sum of the arrays of all workers; None if this process counts alone.
        worker: number of this worker, from 0.
        num_workers: number of workers. Each of them counts a part of the files that have no index.
        indexes: what `indexes_of` has returned; None calls it.

    Raises:
        ValueError: if a file does not have the size that its index states; on every worker, if a file is truncated or
            corrupt, or if workers see different files.
    """
    indexes = indexes_of(files, source) if indexes is None else indexes
    unknown = [file.name not in indexes and file.records is None for file in files]
    if sum_over_workers is not None:
        _check_same_files(files, sum_over_workers, worker, num_workers)
        # If some workers lack an index, all workers count the file, so that they make the same collective calls.
        unknown = (sum_over_workers(np.array(unknown, np.int64)) > 0).tolist()
    missing = [file for file, is_unknown in zip(files, unknown, strict=True) if is_unknown]
    counts = np.zeros([len(missing)], np.int64)
    error: ValueError | None = None
    for i in range(worker, len(missing), num_workers):
        try:
            counts[i], index = _count(missing[i], source)
        except ValueError as failure:
            # The other workers wait for this worker's counts. -1 makes them raise an error as well.
            counts[i], error = -1, error or failure
        else:
            if index is not None:
                indexes[missing[i].name] = index
    if sum_over_workers is not None and missing:
        counts = sum_over_workers(counts)
    if error is not None:
        raise error
    if (counts < 0).any():
        broken = missing[int(np.argmax(counts < 0))].name
        raise ValueError(
            f"expected complete records in {broken!r}, received a truncated or corrupt record, which another worker "
            "found; write the file again, or leave it out."
        )
    counted = dict(zip([file.name for file in missing], counts.tolist(), strict=True))
    known = [
        dataclasses.replace(file, records=indexes[file.name].records if file.name in indexes else file.records)
        if file.name not in counted
        else dataclasses.replace(file, records=counted[file.name])
        for file in files
    ]
    how = "from an index"
    if missing:
        how = "counted by this process" if sum_over_workers is None else "counted by all workers"
    return known, indexes, how


def _check_same_files(files: Sequence[File], sum_over_workers: SumOverWorkers, worker: int, num_workers: int) -> None:
    """Raises ValueError on every worker if one of them has found other names, sizes or numbers of records."""
    text = repr([(file.name, file.size, file.records) for file in files])
    seen = np.zeros([num_workers, 2], np.int64)
    seen[worker] = len(files), int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    seen = sum_over_workers(seen)
    others = [i for i in range(num_workers) if (seen[i] != seen[0]).any()]
    if others:
        raise ValueError(
            f"expected the same files on every worker, received {seen[0][0]} files on worker 0 and "
            f"{seen[others[0]][0]} files on worker {others[0]}, whose names, sizes or numbers of records differ; give "
            "all workers the same files."
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
            f"expected the reader to return the records of {file.name!r}, received {type(error).__name__}: "
            f"{str(error.message).splitlines()[0]}"
        ) from error
    return int(records), None
