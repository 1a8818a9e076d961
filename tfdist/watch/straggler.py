"""Finds a worker that is slower than the others, from how much of the time each worker waits for the others."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

# A worker that waits for a larger share of the time is not the one that the others wait for.
_LARGEST_OWN_SHARE = 0.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shares:
    """What a worker did in the last seconds, as shares of the time.

    Attributes:
        batch: it waited until the other workers had a batch.
        sum: it waited in a sum of gradients.
        callbacks: it ran callbacks between two steps.

    Example:
        >>> Shares(batch=0.5, sum=0.25, callbacks=0.0).waiting
        0.75
    """

    batch: float
    sum: float
    callbacks: float

    @property
    def waiting(self) -> float:
        """The share of the time in which the worker waited for other workers."""
        return self.batch + self.sum


@dataclasses.dataclass(frozen=True, kw_only=True)
class Straggler:
    """A worker that the others wait for.

    Attributes:
        worker: number of the worker.
        ratio: how many times as long as the others it works for a step.
        others_wait: share of the time that the other workers wait.
        where: where it spends its time: "its callbacks", "its data" or "the computation of its step".
    """

    worker: int
    ratio: float
    others_wait: float
    where: str


def find_straggler(shares: Sequence[Shares | None], *, factor: float) -> Straggler | None:
    """Returns the worker that takes at least `factor` times as long for a step as the others, or None.

    Args:
        shares: what each worker did, ordered by worker; None if it is not known.
        factor: smallest ratio.

    Example:
        >>> waits, works = Shares(batch=0.75, sum=0.0, callbacks=0.0), Shares(batch=0.0, sum=0.0, callbacks=0.0)
        >>> find_straggler([waits, works], factor=2.0)
        Straggler(worker=1, ratio=4.0, others_wait=0.75, where='its data')
        >>> find_straggler([works, works], factor=2.0) is None
        True
    """
    known = [one for one in shares if one is not None]
    if len(known) < 2 or len(known) < len(shares):
        return None
    slowest = min(range(len(known)), key=lambda worker: known[worker].waiting)
    own = known[slowest]
    others = [one for worker, one in enumerate(known) if worker != slowest]
    wait = statistics.median(one.waiting for one in others)
    ratio = (1 - own.waiting) / max(1 - wait, 0.01)
    if ratio < factor or own.waiting > _LARGEST_OWN_SHARE:
        return None
    if own.callbacks > (1 - own.waiting) / 2:
        where = "its callbacks"
    else:
        for_batch = statistics.median(one.batch for one in others)
        where = "its data" if for_batch > wait / 2 else "the computation of its step"
    return Straggler(worker=slowest, ratio=ratio, others_wait=wait, where=where)


def straggler_sentence(found: Straggler) -> str:
    """Returns a sentence that names the straggler, says what it does, and what to do.

    Example:
        >>> print(straggler_sentence(Straggler(worker=1, ratio=4.0, others_wait=0.75, where="its data")))
        straggler: worker 1 works 4.0 times as long for a step as the other workers, which wait for it 75 % of the ...
    """
    advice = {
        "its callbacks": "let only the chief run expensive callbacks, or run them less often",
        "its data": "look at the files, the disk and the processors of its input pipeline",
        "the computation of its step": "look at what else runs on its machine",
    }[found.where]
    return (
        f"straggler: worker {found.worker} works {found.ratio:.1f} times as long for a step as the other workers, "
        f"which wait for it {100 * found.others_wait:.0f} % of the time; it spends the time in {found.where}: {advice}."
    )
