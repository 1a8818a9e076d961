"""Watches the start of TensorFlow from a process of its own, and names the tasks that keep it waiting.

Some of TensorFlow's calls wait for other tasks without bound while they hold Python's global interpreter lock: the
multi-worker strategy waits so for a worker that has vanished. No thread of that process can run Python code meanwhile,
so that only another process can report the wait and end it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.peer_startup import probe_peers

_REPORT_SECONDS = 10.0
_PROBE_SECONDS = 3.0
# How long the watched process has to end by itself, and to end after SIGTERM.
_GRACE_SECONDS = 1.0
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from tfdist.cluster.start_watchdog import main; main()"


def start_watchdog(cluster: ClusterConfig, *, timeout_seconds: float) -> subprocess.Popen[bytes]:
    """Starts the process that watches this process until its stdin is closed.

    At the deadline, the watchdog writes to stderr which tasks do not answer, then writes one byte to its stdout, upon
    which this process should end. If this process still runs a second later, the watchdog ends it with a signal.

    Args:
        cluster: the cluster, and the task of this process.
        timeout_seconds: how long TensorFlow's start may take.
    """
    watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, str(Path(__file__).parents[2])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    order = {"tf_config": cluster.to_tf_config(), "timeout_seconds": timeout_seconds, "process": os.getpid()}
    with contextlib.suppress(BrokenPipeError):
        assert watchdog.stdin is not None
        watchdog.stdin.write(f"{json.dumps(order)}\n".encode())
        watchdog.stdin.flush()
    return watchdog


def main() -> None:
    """Runs the watchdog: reads what to watch from stdin, and ends when stdin is closed or the deadline has passed."""
    line = sys.stdin.buffer.readline()
    if not line:
        return  # The process has ended before it could say what to watch.
    order = json.loads(line)
    cluster = ClusterConfig.from_tf_config(order["tf_config"])
    process = order["process"]
    watch(
        cluster,
        timeout_seconds=order["timeout_seconds"],
        finished=lambda seconds: _is_finished(process, seconds),
        end=lambda: _end(process),
    )


def watch(
    cluster: ClusterConfig,
    *,
    timeout_seconds: float,
    finished: Callable[[float], bool],
    end: Callable[[], Any],
    report_every_seconds: float = _REPORT_SECONDS,
) -> None:
    """Reports the tasks that do not answer until the start has finished, and calls `end` at the deadline.

    Args:
        cluster: the cluster, and the task that starts.
        timeout_seconds: how long the start may take.
        finished: waits for at most the given number of seconds, and returns whether the start has finished.
        end: ends the process whose start takes too long.
        report_every_seconds: the time between two reports.

    Example:
        >>> watch(ClusterConfig(), timeout_seconds=1.0, finished=lambda seconds: True, end=print)
    """
    start = time.monotonic()
    while True:
        remaining = start + timeout_seconds - time.monotonic()
        if finished(max(0.0, min(remaining, report_every_seconds))):
            return
        spent = time.monotonic() - start
        if spent >= timeout_seconds:
            break
        for peer, reason in probe_peers(cluster, timeout_seconds=min(_PROBE_SECONDS, report_every_seconds)):
            _write(f"waiting for TensorFlow to start ({spent:.0f} s of {timeout_seconds:.0f} s): {peer}: {reason}")
    sentence = describe(cluster, timeout_seconds=timeout_seconds)
    if not finished(0.0):
        _write(sentence)
        end()


def describe(cluster: ClusterConfig, *, timeout_seconds: float) -> str:
    """Returns one sentence that names the tasks that do not answer after the deadline.

    Args:
        cluster: the cluster, and the task whose start takes too long.
        timeout_seconds: how long the start was allowed to take.
    """
    silent = probe_peers(cluster, timeout_seconds=_PROBE_SECONDS)
    if silent:
        what = "; ".join(f"{peer} did not answer in {timeout_seconds:.0f} s ({reason})" for peer, reason in silent)
    else:
        what = "every task answers, but one of them has not joined; look at the logs of the other tasks"
    return (
        f"{cluster.task_name} expected TensorFlow to start within {timeout_seconds:.0f} s: {what}; "
        "start the missing task, or give more time with startup_timeout_seconds."
    )


def _write(text: str) -> None:
    print(f"tfdist: {text}", file=sys.stderr, flush=True)


def _is_finished(process: int, seconds: float) -> bool:
    # A process that the watched process has forked may keep the pipe open, and the process id may be given again.
    return bool(select.select([sys.stdin], [], [], seconds)[0]) or os.getppid() != process


def _end(process: int) -> None:
    os.write(sys.stdout.fileno(), b"\n")
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if _is_finished(process, _GRACE_SECONDS):
            return
        os.kill(process, signum)
