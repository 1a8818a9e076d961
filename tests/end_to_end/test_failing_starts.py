"""A task that vanishes, is stopped or has a wrong index: the other tasks end before long and name it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

WORKER = """
import sys, time
import tfdist
begin = time.monotonic()
try:
    tfdist.create_strategy(startup_timeout_seconds=float(sys.argv[1]))
except OSError as error:
    sys.exit(f"{type(error).__name__} after {time.monotonic() - begin:.0f} s: {error}")
"""

# Answers the probe of its peer, and ends before it starts TensorFlow.
VANISHING_WORKER = """
from tfdist.cluster import ClusterConfig
from tfdist.cluster.peer_startup import wait_for_peers
wait_for_peers(ClusterConfig.detect(), timeout_seconds=100)
"""

PS_TASK = """
import importlib, os, sys
import tensorflow as tf
import tfdist
from tfdist.cluster import task_watch
task_watch._POLL_SECONDS, task_watch._FIRST_REPORT_SECONDS = 1.0, 2.0
watch_tasks = task_watch.watch_tasks
importlib.import_module("tfdist.strategies.parameter_server").watch_tasks = (
    lambda cluster, *, timeout_seconds, while_alive: watch_tasks(cluster, timeout_seconds=6.0, while_alive=while_alive)
)

def leave(name):
    with open(name + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(name + ".new", name)

leave(sys.argv[1])
strategy = tfdist.create_strategy(startup_timeout_seconds=100)
"""

TRAINING = """
with strategy.scope():
    variable = tf.Variable(0.0)
while True:
    variable.assign_add(1.0)
    leave("training")
"""


def config(ports, task_type, index, **counts):
    addresses = iter([f"127.0.0.1:{port}" for port in ports])
    jobs = {job: [next(addresses) for _ in range(count)] for job, count in counts.items()}
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": task_type, "index": index}})}


@pytest.mark.parametrize("vanished", [pytest.param(0, marks=pytest.mark.full), 1])
def test_a_worker_that_vanishes_after_its_answer_is_named(children, free_ports, vanished):
    ports = free_ports(2)
    other = 1 - vanished
    waiting = children.start(WORKER, "12", env=config(ports, "worker", other, worker=2))
    gone = children.start(VANISHING_WORKER, env=config(ports, "worker", vanished, worker=2))
    assert gone.end().code == 0
    begin = time.monotonic()
    ended = waiting.end()
    # TensorFlow holds the interpreter lock while it waits, so that only a signal ends the process.
    assert ended.code in (-signal.SIGTERM, -signal.SIGKILL)
    assert time.monotonic() - begin < 60
    assert re.search(
        rf"tfdist: worker {other} expected TensorFlow to start within \d+ s: worker {vanished} at "
        rf"127\.0\.0\.1:{ports[vanished]} did not answer in \d+ s \(connection refused\); start the missing task",
        ended.err,
    )


def test_two_processes_with_one_index_both_end_before_the_deadline(children, free_ports):
    ports = free_ports(2)
    same = [children.start(WORKER, "100", env=config(ports, "worker", 0, worker=2)) for _ in range(2)]
    ended = [child.end() for child in same]
    assert [end.code for end in ended] == [1, 1]
    messages = sorted(end.err.splitlines()[-1] for end in ended)
    assert re.fullmatch(
        rf"PeerTimeoutError after \d\d s: worker 1 at 127\.0\.0\.1:{ports[1]} did not answer in [\d.]+ s \(connection "
        r"refused\), and another process \(\d+\) was started as worker 0 at the same address; give every process its "
        r"own task\.index in TF_CONFIG\.",
        messages[0],
    )
    assert messages[1].startswith("PortInUseError after ")
    assert messages[1].endswith(
        "but another process that is worker 0 listens there; give every process its own task.index in TF_CONFIG."
    )


def test_a_ps_that_is_stopped_is_named_and_ends_the_coordinator(children, free_ports, tmp_path):
    jobs = {"chief": 1, "worker": 1, "ps": 1}
    ports = free_ports(3)
    tasks = {
        job: children.start(PS_TASK + (TRAINING if job == "chief" else ""), job, env=config(ports, job, 0, **jobs))
        for job in jobs
    }
    folder = tmp_path / "children"
    pid = int(wait_for(folder / "ps"))
    wait_for(folder / "training")
    os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic()
    ended = tasks["chief"].end()
    assert ended.code == 70
    assert time.monotonic() - begin < 60
    assert (
        f"tfdist: chief 0 expected an answer from every task within 6 s, received none from "
        f"ps 0 at 127.0.0.1:{ports[2]} "
        "(the process accepts connections but does not reply); look at the machine of the task"
    ) in ended.err


def wait_for(path: Path) -> str:
    end = time.monotonic() + 100
    while not path.exists():
        assert time.monotonic() < end, f"expected {path} within 100 s"
        time.sleep(0.05)
    return path.read_text()
