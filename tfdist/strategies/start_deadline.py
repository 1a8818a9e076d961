"""A deadline for TensorFlow's own start-up, which waits for other tasks without bound and cannot be interrupted."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator

from tfdist._log import get_logger
from tfdist.cluster import ClusterConfig
from tfdist.cluster.start_watchdog import start_watchdog

_EXIT_CODE = 70
# TensorFlow needs some time to start even if the last peer has answered at the last moment: at least this number of
# seconds, but not more than half of the time for the whole start.
_LEAST_SECONDS = 30.0


@contextlib.contextmanager
def start_deadline(cluster: ClusterConfig, *, timeout_seconds: float) -> Iterator[None]:
    """Ends the process, and prints which tasks do not answer, if the body takes longer than the deadline.

    The body blocks inside TensorFlow, where no exception can be raised, so that the process has to end. Without the
    deadline, the process would silently wait for ever for a worker that died during start-up. The process ends with
    code 70, or by a signal if TensorFlow holds the global interpreter lock.

    Args:
        cluster: the cluster, and the task of this process in it.
        timeout_seconds: how long the body may take.
    """
    try:
        watchdog = start_watchdog(cluster, timeout_seconds=timeout_seconds)
    except OSError as error:
        get_logger().warning("TensorFlow's start has no deadline, since no process can be started: %s", error)
        yield
        return
    threading.Thread(target=_end_when_told, args=(watchdog,), daemon=True, name="tfdist-start").start()
    try:
        yield
    finally:
        # The watchdog has nothing to clean up, and its end also ends the thread.
        watchdog.kill()
        watchdog.wait()


def time_to_start(timeout_seconds: float, *, since: float) -> float:
    """Returns how many seconds of the time for the whole start TensorFlow's own start may take.

    Args:
        timeout_seconds: the time for the whole start.
        since: when the start began, by time.monotonic().

    Example:
        >>> import time
        >>> from tfdist.strategies.start_deadline import time_to_start
        >>> round(time_to_start(300.0, since=time.monotonic() - 100.0))
        200
        >>> time_to_start(300.0, since=time.monotonic() - 299.0)
        30.0
    """
    remaining = timeout_seconds - (time.monotonic() - since)
    return max(remaining, min(timeout_seconds / 2, _LEAST_SECONDS))


def _end_when_told(watchdog: subprocess.Popen[bytes]) -> None:
    assert watchdog.stdout is not None
    if watchdog.stdout.read(1):
        os._exit(_EXIT_CODE)
