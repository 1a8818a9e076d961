"""A failure ends the whole job soon. The launcher names the failed task and its error, and no process stays alive."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import finish, launch_command, start

# The time limit from the failure to the end of the job.
DEADLINE_SECONDS = 15.0
START_SECONDS = 90.0

TRAINING = """
import json, os, sys
import tensorflow as tf
import tfdist

strategy = tfdist.create_strategy(startup_timeout_seconds=30)
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")


class Mishap(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            open(f"{sys.argv[1]}-{rank}-{os.getpid()}", "w").close()
        if batch == 10 and rank == 1 and "raise" in sys.argv:
            raise RuntimeError("the data is on fire")


data = tf.data.Dataset.from_tensors((tf.ones([4]), tf.ones([1]))).repeat().batch(8)
model.fit(data, steps_per_epoch=10**6, verbose=0, callbacks=[Mishap()])
"""


class Job:
    """A launcher with two workers that train for ever. A mark in the environment finds processes that stay alive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"FAILURE_TEST={uuid.uuid4().hex}"
        self.process: subprocess.Popen[str] | None = None
        (folder / "training.py").write_text(TRAINING)

    def start(self, *arguments: str, options: tuple[str, ...] = ()) -> None:
        key, value = self.mark.split("=")
        command = launch_command("--workers", "2", *options, "--", "training.py", "step", *arguments)
        self.process = start(command, cwd=self.folder, env={key: value})

    def pids(self) -> dict[int, int]:
        """Returns the process id of each worker, after both have made a few steps."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            found = [re.fullmatch(r"step-(\d)-(\d+)", path.name) for path in self.folder.glob("step-*")]
            if len(found) == 2:
                return {int(match[1]): int(match[2]) for match in found if match}
            if self.process is None or self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"expected steps of both workers, received none: {self.end(1).text}")

    def end(self, deadline_seconds: float = DEADLINE_SECONDS):
        assert self.process is not None
        return finish(self.process, deadline_seconds=deadline_seconds)

    def living_processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    for pid in job.living_processes():
        os.kill(pid, signal.SIGKILL)


def test_a_worker_that_raises_is_named_with_its_error(job: Job) -> None:
    job.start("raise")
    job.pids()
    ended = job.end()
    assert ended.code == 1
    # The other worker may end sooner, since the native transport tells it at once that a connection has ended.
    assert re.search(r"worker 1 failed first: (exit code 1|an exception),", ended.text)
    assert re.search(r"next: read \S+worker-1\.log;", ended.text)
    assert "RuntimeError: the data is on fire" in ended.text
    assert job.living_processes() == []


def test_a_worker_killed_with_sigkill_is_named(job: Job) -> None:
    job.start()
    os.kill(job.pids()[1], signal.SIGKILL)
    ended = job.end()
    assert ended.code == 128 + signal.SIGKILL
    assert re.search(r"worker 1 failed first.*SIGKILL", ended.text)
    assert job.living_processes() == []


def test_ctrl_c_ends_all_processes(job: Job) -> None:
    job.start()
    job.pids()
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    ended = job.end()
    assert ended.code == 128 + signal.SIGINT
    assert job.living_processes() == []


def test_a_taken_port_is_named_before_anything_starts(job: Job) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        job.start(options=("--port-base", str(port)))
        ended = job.end()
    assert ended.code != 0
    assert f"{port}" in ended.text
    assert "worker 0" in ended.text
    assert job.living_processes() == []


def test_a_killed_launcher_leaves_no_process(job: Job) -> None:
    job.start()
    job.pids()
    assert job.process is not None
    job.process.kill()
    job.end()
    end = time.monotonic() + DEADLINE_SECONDS
    while job.living_processes() and time.monotonic() < end:
        time.sleep(0.1)
    assert job.living_processes() == []
