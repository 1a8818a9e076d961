from __future__ import annotations

import pytest

from tfdist.input import write_tfrecords


@pytest.fixture(autouse=True)
def _tensorflow(four_cpus, no_surroundings):
    """Runs every test of this folder with four logical CPUs, and without environment variables of a cluster."""


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes the numbers below `count` to TFRecord files and returns the file names."""

    def write(count, num_shards=1):
        return write_tfrecords((b"%d" % i for i in range(count)), str(tmp_path / "numbers"), num_shards=num_shards)

    return write


@pytest.fixture
def unequal(tmp_path):
    """Writes files of 50, 3, 0, 120, 64, 65, 1, 200 and 77 records: the numbers below 580 in order."""
    files, total = [], 0
    for i, size in enumerate([50, 3, 0, 120, 64, 65, 1, 200, 77]):
        files += write_tfrecords((b"%d" % j for j in range(total, total + size)), f"{tmp_path}/f{i}", num_shards=1)
        total += size
    return files
