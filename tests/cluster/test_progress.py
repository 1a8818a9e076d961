from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfdist.cluster.progress import ProgressFile, read_progress


def test_the_last_of_many_records_is_read(tmp_path: Path) -> None:
    with ProgressFile(tmp_path / "p") as file:
        for step in (1, 2, 3, 10, 4):
            file.record(step)
            found = read_progress(tmp_path / "p")
            assert found is not None
            assert found.step == step
    assert abs(found.recorded_at - time.time()) < 60


def test_without_a_file_or_a_record_there_is_no_progress(tmp_path: Path) -> None:
    assert read_progress(tmp_path / "p") is None
    ProgressFile(tmp_path / "p").close()
    assert read_progress(tmp_path / "p") is None
    assert read_progress(tmp_path) is None


@pytest.mark.parametrize("text", [b"", b"x", b"\0" * 80, b"tfdist progress1" + b"\0" * 64, b"tfdist progress1"])
def test_other_files_hold_no_progress_and_are_replaced_by_a_writer(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "p").write_bytes(text)
    assert read_progress(tmp_path / "p") is None
    with ProgressFile(tmp_path / "p") as file:
        file.record(7)
    assert read_progress(tmp_path / "p").step == 7  # type: ignore[union-attr]


def test_a_second_writer_continues_the_records_of_the_first(tmp_path: Path) -> None:
    with ProgressFile(tmp_path / "p") as first:
        first.record(100)
        first.record(101)
        with ProgressFile(tmp_path / "p") as second:
            assert read_progress(tmp_path / "p").step == 101  # type: ignore[union-attr]
            second.record(3)
            assert read_progress(tmp_path / "p").step == 3  # type: ignore[union-attr]


def test_a_record_that_is_half_written_gives_the_record_before_it(tmp_path: Path) -> None:
    with ProgressFile(tmp_path / "p") as file:
        for step in (5, 6):
            file.record(step)
    data = bytearray((tmp_path / "p").read_bytes())
    # The third record begins in the place of the first: its sequence number is written, the rest is not.
    place = data.index(struct.pack("<QQ", 1, 5))
    data[place : place + 8] = struct.pack("<Q", 3)
    (tmp_path / "p").write_bytes(data)
    assert read_progress(tmp_path / "p").step == 6  # type: ignore[union-attr]


def test_records_outlive_a_killed_task(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from tfdist.cluster.progress import ProgressFile
file = ProgressFile(sys.argv[1])
for step in range(1, 1001):
    file.record(step)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "p")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert read_progress(tmp_path / "p").step == 1000  # type: ignore[union-attr]


def test_a_folder_that_does_not_exist_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ProgressFile(tmp_path / "missing" / "p")
