"""Waits until this task has talked to all others, and they to this one."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfdist.cluster import ClusterConfig, Task
from tfdist.cluster.greeting import Greeting
from tfdist.cluster.wrong_indices import explain
from tfdist.doctor.exchange import Exchange
from tfdist.doctor.link import NO_LOOK_UP
from tfdist.doctor.roles import EVALUATOR, other_tasks
from tfdist.doctor.times import Times
from tfdist.doctor.visits import Visits

_LOOK_SECONDS = 0.5
_SAY_SECONDS = 10.0
_SAY_TASKS = 8
# How long this task waits on once processes with wrong indices explain all of the missing tasks.
_PATIENCE_SECONDS = 5.0


def meet(
    config: ClusterConfig,
    exchange: Exchange,
    *,
    visits: Visits,
    has_port: bool,
    is_rival: bool,
    times: Times,
    say: Callable[[str], None] | None,
) -> None:
    """Returns when all tasks have met, or when they should have.

    Args:
        config: the cluster.
        exchange: what this task knows of the others.
        visits: the connections of this task to the others, and to itself.
        has_port: whether this task listens on its port.
        is_rival: whether another process has the port because it is the same task; then every task gets one attempt.
        times: when the parts of the examination end.
        say: called with lines about what this task waits for; None says nothing.
    """
    others = other_tasks(config)
    names = {task.name for task in others}
    # Nobody connects to an evaluator, or to a task without a port.
    awaited = names if has_port and config.task_type != EVALUATOR else set()

    def have_met() -> bool:
        # Some networks do not lead from a machine to itself, so that the first attempt is enough.
        tried = all(link.reason != NO_LOOK_UP for link in visits.links())
        # A task whose TF_CONFIG lists only some of the tasks may not know this one.
        partial = {facts.identity.task for facts in exchange.known() if facts.is_partial}
        heard = partial | {facts.identity.task for facts in exchange.heard()}
        return visits.are_over() if is_rival else tried and names <= exchange.reached() and awaited <= heard

    end, next_line = times.meeting, time.monotonic() + _SAY_SECONDS
    while not exchange.wait_for(have_met, deadline=min(end, time.monotonic() + _LOOK_SECONDS)):
        now = time.monotonic()
        if now >= end:
            return
        missing = _missing(others, visits)
        if missing and explain(missing, [Greeting(rival.task, rival.process) for rival in exchange.rivals()]):
            end = min(end, now + _PATIENCE_SECONDS)
        if say is not None and now >= next_line:
            spent = f"{now - times.start:.0f} s of {end - times.start:.0f} s"
            for task, reason in missing[:_SAY_TASKS]:
                say(f"waiting for {task} ({spent}): {reason}")
            if len(missing) > _SAY_TASKS:
                say(f"waiting for {len(missing) - _SAY_TASKS} more tasks ({spent})")
            if not missing:
                say(f"waiting for other tasks to connect ({spent})")
            next_line = now + _SAY_SECONDS


def _missing(others: tuple[Task, ...], visits: Visits) -> list[tuple[Task, str]]:
    reasons = {link.target: link.reason for link in visits.links()}
    return [(task, reasons[task.name]) for task in others if reasons.get(task.name)]
