"""Runs the programs of the GPU tests on GPUs, and on logical CPUs, each in a process of its own with a deadline."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT, VARIABLES
from tfdist.test.one_device import FILE
from tfdist.test.process import run

SECONDS = 300
_COUNT = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
KINDS = [pytest.param("GPU", marks=pytest.mark.gpu), "CPU"]
# CI runs only some of the programs on CPUs.
KINDS_IN_FULL = [KINDS[0], pytest.param("CPU", marks=pytest.mark.full)]
# The variables of this process before tests/conftest.py and tests/processes.py hide GPUs from programs.
_GPUS = os.environ.get("CUDA_VISIBLE_DEVICES")


def environment(kind: str) -> dict[str, str]:
    """Returns the environment of a program; that of other tests hides all GPUs."""
    own = {**os.environ, **VARIABLES}
    if kind == "GPU":
        del own["CUDA_VISIBLE_DEVICES"]
        own |= {} if _GPUS is None else {"CUDA_VISIBLE_DEVICES": _GPUS}
    return own


@functools.cache
def count_gpus() -> int:
    """Returns how many GPUs TensorFlow finds."""
    command = [sys.executable, "-c", _COUNT]
    ended = subprocess.run(command, env=environment("GPU"), capture_output=True, text=True, timeout=SECONDS)
    return int(ended.stdout.split()[-1]) if ended.returncode == 0 else 0


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of devices; a test on GPUs is skipped where TensorFlow finds none."""
    if request.param == "GPU" and not count_gpus():
        pytest.skip("TensorFlow finds no GPU on this machine")
    return str(request.param)


@pytest.fixture(scope="session")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the file with what one CPU computes."""
    folder = tmp_path_factory.mktemp("one_device")
    ended = run(
        ["-m", "tfdist.test.one_device", str(folder), "2"],
        environment=environment("CPU"),
        log=folder / "log",
        deadline=time.monotonic() + SECONDS,
    )
    assert ended.code == 0, ended.text
    return folder / FILE


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Any]:
    """Returns a function that runs a program on a kind of devices, and returns what it printed."""

    def call(name: str, kind: str, *words: str) -> Any:
        command = [sys.executable, "-m", "tests.gpu.programs", name, kind, *words]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(kind), stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            text, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
            process.wait()
        print(text)
        assert process.returncode == 0
        return json.loads(text.splitlines()[-1])

    return call
