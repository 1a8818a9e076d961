"""A test that hangs ends its process with the stacks of all threads, and pytest-xdist names it: pyproject.toml."""

from __future__ import annotations

import shutil
import subprocess
import sys

from tests.processes import ROOT

TESTS = """
import threading, time
import pytest

@pytest.fixture
def cells(): pass

@pytest.mark.full
def test_of_full(): time.sleep(3)

def test_with_cells(cells): time.sleep(3)

def waits_for_ever(): threading.Event().wait()

def test_that_hangs(): waits_for_ever()
"""


def test_a_test_that_hangs_is_named_and_others_are_not_ended(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_program.py").write_text(TESTS)
    command = ["-m", "pytest", "-n", "1", "-o", "faulthandler_timeout=2", "-m", "full or not full"]
    ended = subprocess.run(
        [sys.executable, *command, "test_program.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 1
    assert "1 failed, 2 passed" in ended.stdout
    assert "crashed while running 'test_program.py::test_that_hangs'" in ended.stdout
    assert "in waits_for_ever" in ended.stderr
