"""Workers count files together, and all of them raise an error if one worker finds other files or a broken file."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tfdist.input import write_tfrecords
from tfdist.input.find import count_files, find_files
from tfdist.input.read import Source


def on_workers(found):
    """Runs count_files in one thread for each worker, and returns the result or the error of each."""
    count = len(found)
    barrier, brought, results = threading.Barrier(count, timeout=30), [None] * count, [None] * count

    def work(worker):
        def sum_over_workers(array):
            brought[worker] = array
            barrier.wait()
            total = np.sum(brought, axis=0)
            barrier.wait()
            return total

        try:
            results[worker] = count_files(
                found[worker], Source(), sum_over_workers=sum_over_workers, worker=worker, num_workers=count
            )
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


def test_each_worker_counts_a_part_of_the_files(folder):
    (folder / "data.index.json").unlink()
    found = find_files(str(folder / "data-*"))
    for known, _, how in on_workers([found, found]):
        assert [file.records for file in known] == [9, 8, 8]
        assert how == "counted by all workers"


def test_all_workers_count_if_one_of_them_lacks_an_index(folder):
    """Both workers count, as if the index were on the disk of one worker only."""
    from tfdist.input import find

    found = find_files(str(folder / "data-*"))
    known = {}
    stock = find.read_indexes

    def read_indexes(names):
        # The first thread that asks gets no index.
        known.setdefault("without", threading.get_ident())
        return {} if known["without"] == threading.get_ident() else stock(names)

    find.read_indexes = read_indexes
    try:
        results = on_workers([found, found])
    finally:
        find.read_indexes = stock
    assert [[file.records for file in result[0]] for result in results] == [[9, 8, 8]] * 2


def test_different_files_are_refused_on_every_worker(folder):
    found = find_files(str(folder / "data-*"))
    for error in on_workers([found, found[:2]]):
        assert str(error) == (
            "expected the same files on every worker, received 3 files on worker 0 and 2 files on worker 1, whose "
            "names, sizes or numbers of records differ; give all workers the same files."
        )


def test_a_truncated_file_is_refused_on_every_worker(folder):
    (folder / "data.index.json").unlink()
    name = next(iter(sorted(folder.glob("data-*"))))
    name.write_bytes(name.read_bytes()[:-3])
    found = find_files(str(folder / "data-*"))
    for error in on_workers([found, found]):
        assert str(error).startswith(f"expected complete records in '{name}', received")
