"""Brings the report of a task to the chief: the task sends it, or the chief fetches it if only that way is open."""

from __future__ import annotations

import contextlib
import time

from tfdist.cluster.greeting import MAX_BYTES
from tfdist.cluster.tasks import Task
from tfdist.doctor import wire
from tfdist.doctor.exchange import Exchange
from tfdist.doctor.facts import Facts
from tfdist.doctor.visits import connect

_TRIALS = 4
_PAUSE_SECONDS = 0.5


def deliver(chief: Task, exchange: Exchange, *, deadline: float) -> bool:
    """Sends the report of this task, and returns whether the chief has said that this task may end.

    Args:
        chief: the task that reports for all tasks.
        exchange: what this task knows.
        deadline: when to give up, in seconds of time.monotonic().
    """
    for _ in range(_TRIALS):
        with (
            contextlib.suppress(OSError, EOFError, ValueError),
            connect(chief, timeout_seconds=_left(deadline)) as channel,
            channel.makefile("rb") as file,
        ):
            file.readline(MAX_BYTES)
            wire.send(channel, "report", facts=exchange.own)
            channel.settimeout(_left(deadline))
            wire.receive(file, "done")
            return True
        if exchange.is_released.wait(min(_PAUSE_SECONDS, _left(deadline))):
            return True
    return False


def fetch(task: Task, exchange: Exchange, *, deadline: float) -> None:
    """Fetches the report of a task, and tells the task that it may end when this task has reported.

    Args:
        task: a task that this task reaches.
        exchange: what this task knows.
        deadline: when to give up, in seconds of time.monotonic().
    """
    with (
        contextlib.suppress(OSError, EOFError, ValueError),
        exchange.delivering(),
        connect(task, timeout_seconds=_left(deadline)) as channel,
        channel.makefile("rb") as file,
    ):
        file.readline(MAX_BYTES)
        wire.send(channel, "fetch")
        exchange.note_report(wire.decode(Facts, wire.receive(file, "report").get("facts")))
        if exchange.has_reported.wait(_left(deadline)):
            channel.settimeout(_left(deadline))
            wire.send(channel, "done")
            wire.receive(file, "done")


def _left(deadline: float) -> float:
    # A timeout of 0 would make a socket non-blocking.
    return max(0.01, deadline - time.monotonic())
