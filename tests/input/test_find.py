"""Workers agree on what they have found, or all of them say that they do not."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tfdist.input import write_tfrecords
from tfdist.input.find import count_files, find_files
from tfdist.input.read import Source


def on_workers(found):
    """Counts the files that each worker has found; arrays are added up once all workers have brought one."""
    count = len(found)
    barrier, brought, results = threading.Barrier(count, timeout=30), [None] * count, [None] * count

    def work(worker):
        def agree(array):
            brought[worker] = array
            barrier.wait()
            total = np.sum(brought, axis=0)
            barrier.wait()
            return total

        try:
            results[worker] = count_files(found[worker], Source(), agree=agree, worker=worker, num_workers=count)
        except ValueError as error:
            results[worker] = error

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture
def folder(tmp_path):
    write_tfrecords((b"%d" % i for i in range(25)), str(tmp_path / "data"), num_shards=3)
    return tmp_path


def test_each_counts_a_part(folder):
    (folder / "data.index.json").unlink()
    found = find_files(str(folder / "data-*"))
    for known, _, how in on_workers([found, found]):
        assert [file.records for file in known] == [9, 8, 8]
        assert how == "counts that the workers shared"


def test_an_index_that_one_worker_lacks(folder):
    """The same names and sizes: as if the index were on one worker's disk only."""
    from tfdist.input import find

    found = find_files(str(folder / "data-*"))
    known = {}
    stock = find.read_indexes

    def read_indexes(names):
        # The first thread to ask has none.
        known.setdefault("without", threading.get_ident())
        return {} if known["without"] == threading.get_ident() else stock(names)

    find.read_indexes = read_indexes
    try:
        results = on_workers([found, found])
    finally:
        find.read_indexes = stock
    assert [[file.records for file in result[0]] for result in results] == [[9, 8, 8]] * 2


def test_other_files_are_said_on_every_worker(folder):
    found = find_files(str(folder / "data-*"))
    for error in on_workers([found, found[:2]]):
        assert str(error) == (
            "expected the same files on every worker, received 3 on worker 0 and 2 on worker 1, or other names or "
            "sizes; give all workers the same files."
        )


def test_a_truncated_file_is_said_on_every_worker(folder):
    (folder / "data.index.json").unlink()
    name = next(iter(sorted(folder.glob("data-*"))))
    name.write_bytes(name.read_bytes()[:-3])
    found = find_files(str(folder / "data-*"))
    for error in on_workers([found, found]):
        assert str(error).startswith(f"expected whole records in '{name}', received")
