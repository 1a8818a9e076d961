"""Decides whether a training stalls, and which worker is the cause. Pure functions of what is known about the workers.

A worker that waits for another one is not the cause of a stall, and neither is a worker that is within the limit of its
phase: while any worker traces, saves or evaluates, the others may wait for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.cluster.probe import CLOSED, REFUSED, SILENT, UNRESOLVED
from tfdist.watch.phases import CALLBACKS, EVALUATION, FIRST_BATCH, OUTSIDE, PREDICTION, TRACING, TRAINING
from tfdist.watch.standing import REPLY_SECONDS, SERVES, Standing

_STEPS = (TRAINING, EVALUATION, PREDICTION, FIRST_BATCH)
_IN_A_STEP = (*_STEPS, TRACING)

# What a worker does. The first six are causes of a stall.
STOPPED = "stopped"
ENDED = "ended"
CUT_OFF = "cut off"
HELD = "held"
DATA = "data"
BUSY = "busy"
# These are not.
WAITS = "waits"
WITHIN = "within its limit"
UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one worker does while the training stalls.

    Attributes:
        standing: what is known about the worker.
        kind: one of the constants of this module.
    """

    standing: Standing
    kind: str

    @property
    def is_cause(self) -> bool:
        """Whether the training stalls because of this worker."""
        return self.kind not in (WAITS, WITHIN, UNKNOWN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stall:
    """A training that makes no step.

    Attributes:
        verdicts: what each worker does, ordered by worker.
        is_decided: whether enough is known. A record or a reply that is missing comes within seconds.
    """

    verdicts: tuple[Verdict, ...]
    is_decided: bool = True

    @property
    def causes(self) -> tuple[int, ...]:
        """The workers because of which the training stalls; all workers, if every worker waits for the others."""
        causes = tuple(verdict.standing.worker for verdict in self.verdicts if verdict.is_cause)
        return causes or tuple(verdict.standing.worker for verdict in self.verdicts)


def judge(standings: Sequence[Standing], *, own: int) -> Stall | None:
    """Returns the stall of the training, or None while no worker is the cause of one.

    A worker that has been stopped, has ended, or is out of reach is the cause of a stall at once, because TensorFlow
    itself gives it up after some seconds more. Any other worker is a cause after the limit of its phase.

    Args:
        standings: what is known about each worker, ordered by worker.
        own: number of this worker.

    Example:
        >>> waiting = Standing(worker=0, phase=TRAINING, seconds=70.0, limit=60.0, waits="batch")
        >>> saving = Standing(worker=1, phase="saving", seconds=70.0, limit=1800.0, waits="")
        >>> blocked = Standing(worker=1, phase=TRAINING, seconds=70.0, limit=60.0, waits="")
        >>> judge([waiting, saving], own=0) is None
        True
        >>> stall = judge([waiting, blocked], own=0)
        >>> stall.causes, [verdict.kind for verdict in stall.verdicts]
        ((1,), ['waits', 'data'])
    """
    if standings[own].phase == OUTSIDE:
        return None
    found = tuple(Verdict(standing=one, kind=_kind(one, standings, own=own)) for one in standings)
    if any(verdict.kind == UNKNOWN for verdict in found):
        return Stall(verdicts=found, is_decided=False)
    found = _excuse(found)
    stall = Stall(verdicts=found)
    if any(verdict.is_cause for verdict in found):
        return stall
    # No worker is the cause: all wait for each other, as when a connection between two of them hangs.
    return stall if all(verdict.kind == WAITS and verdict.standing.is_late for verdict in found) else None


def _excuse(found: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """Returns the verdicts without workers that are in a step and probably wait for another worker.

    Some waits cannot be seen, such as a sum of metrics.
    """
    furthest = max(verdict.standing.step for verdict in found)

    def may_wait(verdict: Verdict) -> bool:
        one = verdict.standing
        if verdict.kind not in (BUSY, WITHIN) or one.phase not in _IN_A_STEP:
            return False
        others = [other for other in found if other is not verdict]
        if any(other.is_cause and other.kind != BUSY for other in others):
            return True
        if verdict.kind == WITHIN or one.waits is not None or one.step < furthest:
            return False
        return any(
            other.kind in (BUSY, WITHIN) and (other.standing.phase not in _STEPS or other.standing.step < furthest)
            for other in others
        )

    return tuple(dataclasses.replace(one, kind=WAITS) if may_wait(one) else one for one in found)


def _kind(one: Standing, standings: Sequence[Standing], *, own: int) -> str:
    if one.worker != own and not one.is_fresh:
        return _kind_of_silent(one, own=standings[own]) if one.is_silent else UNKNOWN
    if one.waits:
        return WAITS
    if not one.is_late:
        return WITHIN
    if one.phase in _IN_A_STEP:
        others_have_a_batch = any(other.waits == "batch" for other in standings if other.is_fresh)
        if one.data_thread or (others_have_a_batch and (one.waits is not None or one.counts_batches)):
            return DATA
    return BUSY


def _kind_of_silent(one: Standing, *, own: Standing) -> str:
    if one.phase == OUTSIDE and not own.is_late:
        # Its program has come to its end, and nobody waits for it.
        return WITHIN
    if one.state == "T":
        return STOPPED
    if one.reply is None and one.silent_seconds < REPLY_SECONDS:
        return UNKNOWN
    if one.reply in (None, UNRESOLVED):
        # Only the look-up of the name may fail.
        return CUT_OFF if own.is_late else WITHIN
    if one.reply == SERVES:
        # The record is from before the silence: the worker may have been between two steps just then, or in a step
        # that has ended since, such as the first one, which traces.
        has_moved = one.phase == CALLBACKS or one.step < own.step
        is_held = one.is_late or (has_moved and one.silent_seconds > own.limit)
        # Only the datagrams may fail to arrive: then this worker makes steps.
        return HELD if own.is_late and is_held else WITHIN
    if one.reply == SILENT:
        return STOPPED
    if one.reply not in (REFUSED, CLOSED):
        return CUT_OFF
    # While this worker saves, others may have come to their end, such as after SIGTERM.
    return ENDED if own.phase in _IN_A_STEP or own.is_late else WITHIN
