"""Samples what this worker does, for the comparison with the other workers."""

from __future__ import annotations

import collections

from tfdist.watch.phases import CALLBACKS, TRAINING
from tfdist.watch.straggler import Shares

_REMEMBERED = 120
_FEWEST = 40


class Samples:
    """The last samples of what this worker did while it trained.

    Example:
        >>> samples = Samples()
        >>> for number in range(80):
        ...     samples.add("training", "batch" if number % 4 else "")
        >>> samples.shares()
        Shares(batch=0.75, sum=0.0, callbacks=0.0)
    """

    def __init__(self) -> None:
        self._seen: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)

    def add(self, phase: str, waits: str | None) -> None:
        """Adds a sample. Samples of other phases than steps and the callbacks between them are ignored.

        Args:
            phase: phase of this worker.
            waits: what this worker waits for, as in Standing.
        """
        if phase == CALLBACKS:
            self._seen.append("callbacks")
        elif phase == TRAINING and waits is not None:
            self._seen.append(waits)

    def clear(self) -> None:
        """Forgets all samples."""
        self._seen.clear()

    def shares(self) -> Shares | None:
        """Returns how often each was seen; None while there are too few samples."""
        if len(self._seen) < _FEWEST:
            return None
        counts = collections.Counter(self._seen)
        shares = [round(counts[name] / len(self._seen), 3) for name in ("batch", "sum", "callbacks")]
        return Shares(batch=shares[0], sum=shares[1], callbacks=shares[2])
