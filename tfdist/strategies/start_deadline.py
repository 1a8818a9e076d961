"""A deadline for TensorFlow's own start-up, which waits for other tasks without bound and cannot be interrupted."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

from tfdist.cluster import ClusterConfig
from tfdist.cluster.peer_startup import probe_peers

_EXIT_CODE = 70


@contextlib.contextmanager
def start_deadline(cluster: ClusterConfig, *, timeout_seconds: float) -> Iterator[None]:
    """Ends the process, and prints which tasks do not answer, if the body takes longer than the deadline.

    The body blocks inside TensorFlow, where no exception can be raised, so that the process has to end. Without the
    deadline, the process would silently wait for ever for a worker that died during start-up.

    Args:
        cluster: the cluster, and the task of this process in it.
        timeout_seconds: how long the body may take.
    """
    timer = threading.Timer(timeout_seconds, _give_up, (cluster, timeout_seconds))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(cluster: ClusterConfig, timeout_seconds: float) -> None:
    silent = probe_peers(cluster)
    if silent:
        what = "; ".join(f"{peer} did not answer in {timeout_seconds:.0f} s ({reason})" for peer, reason in silent)
    else:
        what = "every task answers, but one of them has not joined; look at the logs of the other tasks"
    print(
        f"tfdist: {cluster.task_name} expected TensorFlow to start within {timeout_seconds:.0f} s: {what}; "
        "start the missing task, or give more time with startup_timeout_seconds.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(_EXIT_CODE)
