"""The watch over the tasks of a parameter-server cluster: what it reports, and when it ends the coordinator."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

from tfdist.cluster import Task
from tfdist.cluster.probe import CLOSED, NO_REPLY, REFUSED, SILENT
from tfdist.cluster.task_watch import update

from .conftest import DEADLINE

PS, WORKER = Task("ps", 0, "a:1"), Task("worker", 1, "b:1")


def rounds(*missing, elapsed_seconds=10.0):
    """Returns the lines of each round of probes."""
    silences, lines = {}, []
    for missed in missing:
        silences, new = update(silences, missed, elapsed_seconds=elapsed_seconds)
        lines.append(new)
    return lines


def test_one_late_answer_is_not_reported():
    assert rounds([(PS, SILENT)], [], [(PS, SILENT)], []) == [[], [], [], []]


def test_a_silence_is_reported_once_and_then_every_minute():
    lines = rounds(*[[(PS, SILENT)]] * 9)
    said = "ps 0 at a:1 has not answered for {} s (the process accepts connections but does not reply); the training"
    assert [number for number, new in enumerate(lines) if new] == [1, 7]
    assert lines[1] == [said.format(20) + " may wait for it"]
    assert lines[7] == [said.format(80) + " may wait for it"]


def test_the_end_of_a_reported_silence_is_logged():
    lines = rounds([(PS, NO_REPLY)], [(PS, NO_REPLY), (WORKER, NO_REPLY)], [(WORKER, NO_REPLY)])
    assert lines[2] == [
        "worker 1 at b:1 has not answered for 20 s (no reply); the training may wait for it",
        "ps 0 at a:1 answers again after 20 s",
    ]


@pytest.mark.parametrize("reason", [REFUSED, CLOSED])
def test_a_task_that_has_ended_is_left_to_tensorflow(reason):
    assert rounds(*[[(WORKER, reason)]] * 100) == [[]] * 100
    # The time before the end of the task no longer counts, and the task has not answered either.
    assert rounds([(WORKER, SILENT)], [(WORKER, SILENT)], [(WORKER, reason)])[2] == []


COORDINATOR = """
import sys, time
from tfdist.cluster import ClusterConfig, task_watch
task_watch._POLL_SECONDS, task_watch._PROBE_SECONDS, task_watch._FIRST_REPORT_SECONDS = 0.1, 0.5, 0.2
jobs = {"chief": ["127.0.0.1:1"], "worker": [sys.argv[1]], "ps": [sys.argv[2]]}
strategy = lambda: None
task_watch.watch_tasks(ClusterConfig(jobs=jobs, task_type="chief"), timeout_seconds=2.0, while_alive=strategy)
print("trains", flush=True)
if sys.argv[3] == "stays":
    time.sleep(1000)
del strategy
time.sleep(4)
"""

SERVER = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        server.accept()[0].sendall(b"settings")
"""


@pytest.fixture
def tasks():
    """Starts processes that answer as TensorFlow's servers do; returns each with its address."""
    started = []

    def start():
        process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, f"127.0.0.1:{process.stdout.readline().strip()}"

    yield start
    for process in started:
        process.kill()
        process.communicate()


def coordinator(*arguments):
    return subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_stopped_task_is_named_and_ends_the_coordinator_after_the_deadline(tasks):
    (_, worker), (ps, stopped) = tasks(), tasks()
    process = coordinator(worker, stopped, "stays")
    assert process.stdout.readline() == "trains\n"
    begin = time.monotonic()
    ps.send_signal(signal.SIGSTOP)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 70
    assert time.monotonic() - begin >= 1.5
    reason = "the process accepts connections but does not reply"
    *reports, last = err.splitlines()
    assert re.fullmatch(
        rf"tfdist: ps 0 at {stopped} has not answered for \d s \({reason}\); the training may wait for it", reports[0]
    )
    assert last == (
        f"tfdist: chief 0 expected an answer from every task within 2 s, received none from "
        f"ps 0 at {stopped} ({reason}); "
        "look at the machine of the task, and start the training again."
    )
    assert worker not in err


def test_the_watch_ends_with_the_strategy(tasks):
    (_, worker), (ps, stopped) = tasks(), tasks()
    ps.send_signal(signal.SIGSTOP)
    process = coordinator(worker, stopped, "ends")
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out, err) == (0, "trains\n", "")
