"""Pace: decides after which steps snapshots are taken. This file is independent of TensorFlow.

Source: Mohan, Phanishayee, Chidambaram, "CheckFreq: Frequent, Fine-Grained DNN Checkpointing", FAST 2021: the cost of a
snapshot is measured, and snapshots are as frequent as a bound on the overhead allows.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Sequence

# Without measurements, the first snapshot is taken after so many steps.
FIRST_STEPS = 10
_RECENT_STEPS = 50
_RECENT_SNAPSHOTS = 3
_MICROSECONDS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Costs:
    """What one worker has measured, in whole microseconds. 0 stands for a time that is not known yet.

    Attributes:
        step: the usual time of a step.
        copy: how long a snapshot in memory holds up the step.
        wait: how long the workers wait for each other, and exchange values, for a snapshot.
        write: time of the processor that a snapshot on disk takes.
    """

    step: int = 0
    copy: int = 0
    wait: int = 0
    write: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intervals:
    """Numbers of steps between two snapshots.

    Attributes:
        memory: steps between two snapshots.
        disk: steps between two snapshots that are also written to the disk.
    """

    memory: int
    disk: int


def choose_intervals(costs: Sequence[Costs], *, overhead: float) -> Intervals:
    """Returns the shortest intervals whose cost stays below a share of the time of the steps.

    One half of the overhead is for snapshots in memory, the other half is for snapshots on disk.

    Args:
        costs: the measurements of all workers.
        overhead: largest share of the time of the steps.

    Example:
        >>> from tfdist.checkpoint.pace import Costs, choose_intervals
        >>> choose_intervals([Costs(step=50_000, copy=8_000, wait=2_000, write=95_000)], overhead=0.02)
        Intervals(memory=20, disk=200)
    """
    step = max(1, max(cost.step for cost in costs))
    # A worker that comes first waits for the slowest one, as it would in its next step.
    held = max(cost.copy for cost in costs) + min(cost.wait for cost in costs)
    half = step * overhead / 2
    memory = max(1, math.ceil(held / half))
    return Intervals(memory=memory, disk=memory * max(1, math.ceil(max(cost.write for cost in costs) / half / memory)))


class Pace:
    """Measures steps and snapshots, and says after which steps snapshots are due. All workers decide alike.

    Args:
        every_steps: number of steps between two snapshots, or None.
        every_seconds: time between two snapshots, or None.
        overhead: largest share of the time of the steps, if neither is given.

    Raises:
        ValueError: if an option has no meaning, or if both of the first two are given.

    Example:
        >>> from tfdist.checkpoint.pace import Pace
        >>> pace = Pace(every_steps=3)
        >>> [step for step in range(1, 10) if pace.is_due(step)]
        [3, 4, 5, 6, 7, 8, 9]
        >>> pace.taken(3, on_disk=True)
        >>> pace.is_due(5), pace.is_due(6)
        (False, True)
    """

    def __init__(
        self, *, every_steps: int | None = None, every_seconds: float | None = None, overhead: float = 0.02
    ) -> None:
        if every_steps is not None and every_seconds is not None:
            raise ValueError(
                f"expected every_steps or every_seconds, received {every_steps} and {every_seconds}; leave one out."
            )
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"expected every_steps to be at least 1, received {every_steps}.")
        if every_seconds is not None and not every_seconds > 0:
            raise ValueError(f"expected every_seconds to be more than 0, received {every_seconds}.")
        if not 0 < overhead < 1:
            raise ValueError(f"expected overhead to be between 0 and 1, received {overhead}.")
        self._every_steps, self._every_seconds, self._overhead = every_steps, every_seconds, overhead
        first = every_steps or FIRST_STEPS
        self._intervals = Intervals(memory=first, disk=first)
        self._in_memory = self._on_disk = 0
        self._steps: collections.deque[float] = collections.deque(maxlen=_RECENT_STEPS)
        self._copies: collections.deque[float] = collections.deque(maxlen=_RECENT_SNAPSHOTS)
        self._waits: collections.deque[float] = collections.deque(maxlen=_RECENT_SNAPSHOTS)
        self._write = 0.0
        self._has_decided = False

    @property
    def intervals(self) -> Intervals:
        """The current numbers of steps between two snapshots."""
        return self._intervals

    def begin(self, step: int) -> None:
        """Counts from a step.

        Args:
            step: number of steps before.
        """
        self._in_memory = self._on_disk = step

    def step_took(self, seconds: float) -> None:
        """Measures a step.

        Args:
            seconds: its time.
        """
        self._steps.append(seconds)

    def copy_took(self, seconds: float) -> None:
        """Measures how long a snapshot in memory held up a step.

        Args:
            seconds: the time.
        """
        self._copies.append(seconds)

    def wait_took(self, seconds: float) -> None:
        """Measures how long the workers waited for each other.

        Args:
            seconds: the time.
        """
        self._waits.append(seconds)

    def write_took(self, seconds: float) -> None:
        """Measures the time of the processor for a snapshot on disk.

        Args:
            seconds: the time.
        """
        self._write = seconds

    @property
    def costs(self) -> Costs:
        """What this worker has measured."""
        whole = [
            round(value * _MICROSECONDS)
            for value in (_median(self._steps), _median(self._copies), _median(self._waits), self._write)
        ]
        return Costs(step=whole[0], copy=whole[1], wait=whole[2], write=whole[3])

    def is_due(self, step: int) -> bool:
        """Returns whether a snapshot is due after a step.

        Args:
            step: number of steps.
        """
        return step - self._in_memory >= self._intervals.memory

    def is_due_on_disk(self, step: int) -> bool:
        """Returns whether a snapshot of this step is to be written to the disk.

        Args:
            step: number of steps.
        """
        return step - self._on_disk >= self._intervals.disk

    def taken(self, step: int, *, on_disk: bool) -> None:
        """Counts from the last snapshot.

        Args:
            step: its step.
            on_disk: whether it is also written to the disk.
        """
        self._in_memory = step
        if on_disk:
            self._on_disk = step

    def decide(self, costs: Sequence[Costs]) -> str | None:
        """Chooses the intervals anew, and returns a sentence for the log if they have changed much.

        Args:
            costs: the measurements of all workers.
        """
        if self._every_steps is not None or not all(cost.step and cost.copy for cost in costs):
            return None
        before, step = self._intervals, max(cost.step for cost in costs) / _MICROSECONDS
        if self._every_seconds is not None:
            every = max(1, round(self._every_seconds / step))
            self._intervals = Intervals(memory=every, disk=every)
        else:
            self._intervals = choose_intervals(costs, overhead=self._overhead)
        if self._has_decided and not _differ(before, self._intervals):
            return None
        self._has_decided = True
        copy, write = max(cost.copy for cost in costs) / 1e3, max(cost.write for cost in costs) / 1e3
        return (
            f"a snapshot every {self._intervals.memory} steps, on disk every {self._intervals.disk} steps: a step "
            f"takes {step * 1e3:.1f} ms, a copy in memory {copy:.1f} ms, and a write {write:.0f} ms of a processor"
        )


def _differ(one: Intervals, other: Intervals) -> bool:
    return any(max(a, b) > 2 * min(a, b) for a, b in ((one.memory, other.memory), (one.disk, other.disk)))


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
