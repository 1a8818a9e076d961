"""Watches the tasks of a parameter-server cluster from the coordinator while they train.

TensorFlow notices a task whose process has ended. It does not notice a task that is stopped or whose machine is gone:
the coordinator then waits inside TensorFlow without bound, where no exception can be raised.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from tfdist._log import get_logger
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.peer_startup import probe_peers
from tfdist.cluster.probe import CLOSED, REFUSED
from tfdist.cluster.tasks import Task

_POLL_SECONDS = 10.0
_PROBE_SECONDS = 5.0
_REPORT_SECONDS = 60.0
# A machine under load may answer one probe late.
_FIRST_REPORT_SECONDS = 15.0
_EXIT_CODE = 70


@dataclasses.dataclass(frozen=True)
class Silence:
    """How long a task has not answered.

    Args:
        seconds: the time without an answer.
        reason: the reason of the last attempt.
        reported: `seconds` at the last report; 0 if there was none.

    Example:
        >>> Silence(10.0, "no reply").reported
        0.0
    """

    seconds: float
    reason: str
    reported: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the silence is to be reported now."""
        return self.seconds >= (self.reported + _REPORT_SECONDS if self.reported else _FIRST_REPORT_SECONDS)


def update(
    silences: dict[Task, Silence], missing: Sequence[tuple[Task, str]], *, elapsed_seconds: float
) -> tuple[dict[Task, Silence], list[str]]:
    """Returns the silences after another round of probes, and the lines to log.

    A task that refuses connections is left out: its process has ended, and TensorFlow itself handles that.

    Args:
        silences: the silent tasks so far.
        missing: the tasks that did not answer, each with the reason.
        elapsed_seconds: the time since the last round.

    Example:
        >>> task = Task("ps", 0, "a:1")
        >>> silences, lines = update({}, [(task, "no reply")], elapsed_seconds=20.0)
        >>> lines
        ['ps 0 at a:1 has not answered for 20 s (no reply); the training may wait for it']
        >>> update(silences, [], elapsed_seconds=5.0)
        ({}, ['ps 0 at a:1 answers again after 20 s'])
    """
    now: dict[Task, Silence] = {}
    lines = []
    for task, reason in missing:
        if reason in (REFUSED, CLOSED):
            continue
        before = silences.get(task, Silence(0.0, reason))
        silence = dataclasses.replace(before, seconds=before.seconds + elapsed_seconds, reason=reason)
        if silence.is_due:
            lines.append(
                f"{task} has not answered for {silence.seconds:.0f} s ({reason}); the training may wait for it"
            )
            silence = dataclasses.replace(silence, reported=silence.seconds)
        now[task] = silence
    unanswered = {task for task, _ in missing}
    for task, silence in silences.items():
        if task not in unanswered and silence.reported:
            lines.append(f"{task} answers again after {silence.seconds:.0f} s")
    return now, lines


def watch_tasks(cluster: ClusterConfig, *, timeout_seconds: float, while_alive: object) -> None:
    """Starts a thread that reports the tasks that do not answer, and ends this process after a deadline.

    Args:
        cluster: the cluster, and the task of this process.
        timeout_seconds: how long a task may go without an answer.
        while_alive: the object, such as a strategy, whose end also ends the thread.
    """
    alive = weakref.ref(while_alive)
    thread = threading.Thread(
        target=_watch, args=(cluster, timeout_seconds, lambda: alive() is not None), daemon=True, name="tfdist-tasks"
    )
    thread.start()


def _watch(cluster: ClusterConfig, timeout_seconds: float, alive: Callable[[], bool]) -> None:
    silences: dict[Task, Silence] = {}
    last = time.monotonic()
    while True:
        time.sleep(_POLL_SECONDS)
        missing = probe_peers(cluster, timeout_seconds=_PROBE_SECONDS) if alive() else ()
        if not alive():
            return
        now = time.monotonic()
        # If this process itself was stopped, the time in which it did not probe does not count.
        elapsed = min(now - last, 2 * (_POLL_SECONDS + _PROBE_SECONDS))
        last = now
        silences, lines = update(silences, missing, elapsed_seconds=elapsed)
        for line in lines:
            get_logger().warning(line)
        overdue = [(task, silence) for task, silence in silences.items() if silence.seconds >= timeout_seconds]
        if overdue:
            _give_up(cluster, overdue, timeout_seconds)


def _give_up(cluster: ClusterConfig, overdue: Sequence[tuple[Task, Silence]], timeout_seconds: float) -> None:
    what = " and ".join(f"{task} ({silence.reason})" for task, silence in overdue)
    sys.stdout.flush()
    print(
        f"tfdist: {cluster.task_name} expected an answer from every task within {timeout_seconds:g} s, received none "
        f"from {what}; look at the machine of the task, and start the training again.",
        file=sys.stderr,
        flush=True,
    )
    # The main thread waits inside TensorFlow, where no exception reaches it.
    os._exit(_EXIT_CODE)
