"""When a job has failed, is winding down, or is done. Pure functions over how its ranks have ended so far."""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.launch.environment import has_ps
from tfdist.launch.report import RankExit
from tfdist.launch.spec import Rank


def first_failure(ranks: Sequence[Rank], exits: Sequence[RankExit]) -> RankExit | None:
    """Returns the rank that failed first, None if none has.

    Ranks that were told to end have not failed, however they ended. Nor have workers and parameter servers that ended
    after their coordinator had succeeded: they only lost it.

    Example:
        >>> ranks = [Rank("worker", 0), Rank("worker", 1)]
        >>> exits = [RankExit(rank=ranks[0], code=1, seconds=9.2), RankExit(rank=ranks[1], code=3, seconds=9.1)]
        >>> first_failure(ranks, exits).rank.label
        'worker 1'
    """
    done_at = coordinator_done_at(ranks, exits)
    failures = [
        item
        for item in exits
        if item.code != 0
        and not item.told
        and not (item.rank.role in ("worker", "ps") and done_at is not None and item.seconds >= done_at)
    ]
    return min(failures, key=lambda item: item.seconds, default=None)


def coordinator_done_at(ranks: Sequence[Rank], exits: Sequence[RankExit]) -> float | None:
    """Returns when the coordinator of a parameter server cluster succeeded, None if it hasn't or there is none."""
    if not has_ps(ranks):
        return None
    return next((item.seconds for item in exits if item.rank.role == "chief" and item.code == 0), None)


def winding_down(ranks: Sequence[Rank], exits: Sequence[RankExit]) -> list[Rank]:
    """Returns the running ranks that nobody needs any more: they get a grace period to end by themselves.

    After a coordinator's success these are its workers and parameter servers; when only the evaluator is left, it.

    Example:
        >>> ranks = [Rank("worker", 0), Rank("evaluator", 0)]
        >>> winding_down(ranks, [RankExit(rank=ranks[0], code=0, seconds=60.0)])
        [Rank(role='evaluator', index=0)]
    """
    ended = {item.rank for item in exits}
    running = [rank for rank in ranks if rank not in ended]
    servants = [rank for rank in running if rank.role in ("worker", "ps")]
    if coordinator_done_at(ranks, exits) is not None and servants:
        return servants
    only_evaluator = bool(running) and all(rank.role == "evaluator" for rank in running)
    return running if only_evaluator and len(ranks) > 1 else []
