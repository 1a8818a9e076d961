"""watch: what the watchdog of TensorFlow's start reports, and when it ends the process, with a fake process."""

from __future__ import annotations

import re
import time

import pytest

from tfdist.cluster import ClusterConfig
from tfdist.cluster.start_watchdog import describe, watch

from .conftest import DEADLINE


@pytest.fixture
def cluster(held_ports, server):
    (own, refused), (_, up) = held_ports(2), server()
    jobs = {"worker": [f"127.0.0.1:{port}" for port in (own, refused, up)]}
    return ClusterConfig(jobs=jobs, task_type="worker")


class Start:
    """A start of TensorFlow that takes some time, in place of a process."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.ended_by_watchdog = 0

    def finished(self, seconds):
        time.sleep(max(0.0, min(seconds, self.end - time.monotonic())))
        return time.monotonic() >= self.end

    def kill(self):
        self.ended_by_watchdog += 1


def test_a_start_in_time_is_left_alone(cluster, capfd):
    start = Start(0.2)
    watch(cluster, timeout_seconds=DEADLINE, finished=start.finished, end=start.kill)
    assert start.ended_by_watchdog == 0
    assert capfd.readouterr().err == ""


def test_missing_tasks_are_reported_until_the_deadline(cluster, capfd):
    start = Start(10 * DEADLINE)
    # Long enough that a busy machine makes at least one report.
    watch(cluster, timeout_seconds=4.0, finished=start.finished, end=start.kill, report_every_seconds=0.4)
    assert start.ended_by_watchdog == 1
    *reports, sentence = capfd.readouterr().err.splitlines()
    refused = cluster.jobs["worker"][1]
    missing = rf"tfdist: waiting for TensorFlow to start \([0-4] s of 4 s\): worker 1 at {refused}: connection refused"
    assert 1 <= len(reports) <= 10
    assert all(re.fullmatch(missing, report) for report in reports)
    assert sentence == (
        f"tfdist: worker 0 expected TensorFlow to start within 4 s: worker 1 at {refused} did not answer in 4 s "
        "(connection refused); start the missing task, or give more time with startup_timeout_seconds."
    )


def test_every_missing_task_is_named(held_ports, silent_server, monkeypatch):
    monkeypatch.setattr("tfdist.cluster.start_watchdog._PROBE_SECONDS", 0.3)
    (own, refused), (_, silent) = held_ports(2), silent_server()
    jobs = {"chief": [f"127.0.0.1:{own}"], "worker": [f"127.0.0.1:{refused}"], "ps": [f"127.0.0.1:{silent}"]}
    sentence = describe(ClusterConfig(jobs=jobs, task_type="chief"), timeout_seconds=30)
    assert f"worker 0 at 127.0.0.1:{refused} did not answer in 30 s (connection refused); " in sentence
    reason = "the process accepts connections but does not reply"
    assert f"ps 0 at 127.0.0.1:{silent} did not answer in 30 s ({reason}); " in sentence
