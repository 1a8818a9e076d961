"""Fixtures for all tests: TensorFlow with four logical CPUs, and child processes with a hard deadline.

Importing this module does not import TensorFlow, so that the tests of launch and cluster start quickly.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.processes import VARIABLES
from tests.warm.client import WarmPopen

# TensorFlow uses the kernels of oneDNN by default only on CPUs that have certain instructions. The tests use them on
# every CPU, since one of the defects that they look for is one of these kernels.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# An example may take long on a busy machine.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# Far more time than any child process needs, so that only a hang reaches the limit and fails the test.
DEADLINE_SECONDS = 300.0

# The environment variables that would make a test depend on the machine it runs on.
SURROUNDINGS = ("TF_CONFIG", "TPU_NAME", "COLAB_TPU_ADDR", "TPU_ACCELERATOR_TYPE")


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Frees tests from the limit of pyproject.toml that have deadlines of their own and may take longer.

    Tests marked `full` may take hours, and a test of conformance or of public programs waits for all of its topology.
    """
    if item.get_closest_marker("full") or {"cells", "programs"} & {*getattr(item, "fixturenames", ())}:
        faulthandler.cancel_dump_traceback_later()


class Child:
    """A Python process in a session of its own that writes its output to files."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self._process, self._out, self._err = process, out, err

    def end(self) -> Finished:
        """Waits for the end of the process. After the deadline, kills it with its children and fails the test."""
        try:
            self._process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"expected the child process to end within {DEADLINE_SECONDS:g} s, received:\n{self._text()}")
        finally:
            self.kill()
        # pytest shows this output if the test fails.
        print(self._text())
        return Finished(self._process.returncode, self._out.read_text(), self._err.read_text())

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_SECONDS)

    def _text(self) -> str:
        out, err = (path.read_text(errors="replace") for path in (self._out, self._err))
        return f"{out}\n---- stderr ----\n{err}"


class Children:
    """Starts Python programs, and ends the programs that still run after a test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Child] = []

    def start(self, program: str, *args: str, env: dict[str, str] | None = None, cold: bool = False) -> Child:
        """Starts a program given as text."""
        file = self._folder / f"program{len(self._started)}.py"
        file.write_text(textwrap.dedent(program))
        return self.start_command(str(file), *args, env=env, cold=cold)

    def start_command(self, *args: str, env: dict[str, str] | None = None, cold: bool = False) -> Child:
        """Starts `python ARGS`; a cold process has not imported TensorFlow before."""
        number = len(self._started)
        out, err = (self._folder / f"child{number}.{stream}" for stream in ("out", "err"))
        base = {key: value for key, value in os.environ.items() if key not in SURROUNDINGS}
        base |= VARIABLES
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = (subprocess.Popen if cold else WarmPopen)(
                [sys.executable, *args],
                cwd=self._folder,
                env={**base, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
            )
        self._started.append(Child(process, out, err))
        return self._started[-1]

    def run(self, program: str, *args: str, env: dict[str, str] | None = None, cold: bool = False) -> Finished:
        """Runs a program given as text to its end."""
        return self.start(program, *args, env=env, cold=cold).end()

    def clean_up(self) -> None:
        for child in self._started:
            child.kill()


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    folder = tmp_path / "children"
    folder.mkdir()
    result = Children(folder)
    yield result
    result.clean_up()


@pytest.fixture(scope="module")
def module_children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    result = Children(tmp_path_factory.mktemp("children"))
    yield result
    result.clean_up()


def pytest_collection_finish() -> None:
    """Splits the CPU before the first test: a test that needs no replicas may start TensorFlow before one that does."""
    if "tensorflow" in sys.modules:
        split_cpu()


def split_cpu() -> None:
    """Splits the CPU of this process into four logical CPUs, which is only possible before TensorFlow starts."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)


@pytest.fixture(scope="session")
def four_cpus() -> None:
    """Gives the process of a test four logical CPUs."""
    split_cpu()
    import tensorflow as tf

    assert len(tf.config.list_logical_devices("CPU")) == 4


@pytest.fixture
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the environment variables that describe a cluster or a TPU."""
    for name in SURROUNDINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def free_ports() -> Iterator:
    """Gives ports that stay free for the test: each is bound as a launcher binds it, and nothing listens on it."""
    with contextlib.ExitStack() as stack:

        def hold(count: int) -> list[int]:
            ports = []
            for _ in range(count):
                holder = stack.enter_context(socket.socket())
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                holder.bind(("127.0.0.1", 0))
                ports.append(holder.getsockname()[1])
            return ports

        yield hold
