"""Position: which step the training of this process is in, since when, and how long its steps usually take."""

from __future__ import annotations

import collections
import dataclasses
import statistics
import time

from tfdist.watch.phases import CALLBACKS, FIRST_BATCH, OUTSIDE, SAVING, STEPS, TRACING, TRAINING

_REMEMBERED = 32
# With fewer durations than this, the usual duration is not known.
_FEWEST = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    """A position at one moment.

    Attributes:
        phase: one of the phases.
        seconds: how long the training has been in this phase, in this step.
        step: number of the current training step, from 1, counted since the watch began.
        epoch: number of the epoch, from 1.
        batch: number of the current training step in its epoch, from 1.
        usual_seconds: median duration of the last steps of this kind; None if there were too few.
        usual_step_seconds: the same of training steps.
        number: how many steps of all kinds have begun.
    """

    phase: str
    seconds: float
    step: int
    epoch: int
    batch: int
    usual_seconds: float | None
    usual_step_seconds: float | None
    number: int


class Position:
    """The position of this process. The thread that trains changes it, the thread of the watch reads it.

    A change takes about a microsecond and no lock.

    Example:
        >>> position = Position()
        >>> position.begin_epoch(0)
        >>> position.begin_step(TRAINING, 0)
        >>> position.where().phase
        'tracing'
        >>> position.end_step()
        >>> position.begin_step(TRAINING, 1)
        >>> position.where().phase, position.where().step, position.where().batch
        ('training', 2, 2)
    """

    def __init__(self) -> None:
        self._epoch = self._batch = self._steps = self._number = 0
        # Phase, kind of step, and when the phase began: one tuple, so that a reader never sees parts of two changes.
        self._now: tuple[str, str, float] = (OUTSIDE, "", time.monotonic())
        self._durations = {kind: collections.deque[float](maxlen=_REMEMBERED) for kind in STEPS}
        self._kinds_made: set[str] = set()
        self._next_is_first = True
        # When the step began in which TensorFlow was seen to trace.
        self._traced = 0.0
        # When the phase began in which this process was kept from running, and for how many seconds.
        self._kept: tuple[float, float] = (0.0, 0.0)

    def enter(self, phase: str) -> None:
        """Begins a phase that is not a step."""
        self._now = (phase, "", time.monotonic())

    def begin_fit(self) -> None:
        """Begins fit: its first step counts as a trace."""
        self._kinds_made.clear()
        self.enter(SAVING)

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch, numbered from 0: its first step waits until the pipeline has filled its buffers."""
        self._epoch, self._batch = epoch, 0
        self.begin_data()

    def begin_data(self) -> None:
        """Begins data of their own: the next step has the limit of a first batch."""
        self._next_is_first = True
        self.enter(SAVING)

    def begin_step(self, kind: str, batch: int) -> None:
        """Begins a step.

        Args:
            kind: "training", "evaluation" or "prediction".
            batch: number of the step in its epoch, from 0.
        """
        if kind == TRAINING:
            self._batch = batch
        phase = kind
        if kind not in self._kinds_made:
            phase = TRACING
        elif self._next_is_first:
            phase = FIRST_BATCH
        self._number += 1
        self._now = (phase, kind, time.monotonic())

    def begin_next(self) -> None:
        """Begins the next step of training."""
        self.begin_step(TRAINING, self._batch)

    def end_step(self, steps: int = 1) -> None:
        """Ends a step; callbacks run until the next one.

        Args:
            steps: how many steps of training the function has made that Keras calls one step.
        """
        now = time.monotonic()
        phase, kind, since = self._now
        self._now = (CALLBACKS, "", now)
        if not kind:
            return
        self._kinds_made.add(kind)
        self._next_is_first = False
        if phase == kind and self._traced != since:
            self._durations[kind].append(now - since - self._kept_seconds(since))
        if kind == TRAINING:
            self._steps += steps
            self._batch += steps

    def mark_traced(self) -> None:
        """Gives the current step the limit of a trace."""
        self._traced = self._now[2]

    def restart_clock(self) -> None:
        """Counts the time in the current phase from now; for a process that could not run."""
        since = self._now[2]
        self._kept = (since, time.monotonic() - since)

    def skip(self, seconds: float) -> None:
        """Does not count the last seconds of the current phase, in which this process was kept from running.

        Args:
            seconds: how many; no more of them are taken off than the phase has.
        """
        since = self._now[2]
        self._kept = (since, min(self._kept_seconds(since) + seconds, time.monotonic() - since))

    def _kept_seconds(self, since: float) -> float:
        begun, seconds = self._kept
        return seconds if begun == since else 0.0

    def where(self) -> Where:
        """Returns the position now."""
        phase, kind, since = self._now
        in_trace = bool(kind) and self._traced == since
        return Where(
            phase=TRACING if in_trace else phase,
            seconds=time.monotonic() - since - self._kept_seconds(since),
            step=self._steps + 1,
            epoch=self._epoch + 1,
            batch=self._batch + 1,
            usual_seconds=self._usual(kind),
            usual_step_seconds=self._usual(TRAINING),
            number=self._number,
        )

    def _usual(self, kind: str) -> float | None:
        durations = list(self._durations.get(kind, ()))
        return statistics.median(durations) if len(durations) >= _FEWEST else None
