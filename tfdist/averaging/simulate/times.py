"""When the steps and meetings of a training end: a model of machines and links.

The model knows the time that a worker computes, the latency of a message, and the rate of a link. Links are full
duplex: sending does not slow down receiving. Only the gossip of D-PSGD overlaps with the computation, as in its paper.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tfdist.averaging.mixing import Mixing


@dataclass(frozen=True, kw_only=True)
class Machines:
    """How long the workers compute.

    Args:
        step_seconds: the time of one step of each worker.
        jitter: a step takes step_seconds * (1 + jitter * e), where e has an exponential distribution of mean 1.
        seed: of the jitter.

    Example:
        >>> Machines.alike(3, seconds=0.1, slow=1, factor=4).step_seconds
        (0.1, 0.1, 0.4)
        >>> machines = Machines.alike(3, seconds=0.1, jitter=0.5)
        >>> machines.seconds(2, 7) == machines.all_seconds(7)[2] > 0.1
        np.True_
    """

    step_seconds: tuple[float, ...]
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.step_seconds or not all(seconds > 0 for seconds in self.step_seconds):
            raise ValueError(f"expected the seconds of a step of each worker, above 0, received {self.step_seconds}.")
        if not self.jitter >= 0:
            raise ValueError(f"expected a jitter of 0 or more, received {self.jitter!r}.")

    @staticmethod
    def alike(
        workers: int, *, seconds: float, slow: int = 0, factor: float = 1.0, jitter: float = 0.0, seed: int = 0
    ) -> Machines:
        """Returns workers with the same speed, of which the last `slow` ones take `factor` times as long."""
        if not 0 <= slow <= workers:
            raise ValueError(f"expected from 0 to {workers} slow workers, received {slow!r}.")
        times = (seconds,) * (workers - slow) + (seconds * factor,) * slow
        return Machines(step_seconds=times, jitter=jitter, seed=seed)

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.step_seconds)

    def all_seconds(self, step: int) -> np.ndarray:
        """Returns how long each worker computes in its step of a number."""
        return np.array(self.step_seconds) * (1 + self.jitter * _exponential(self.workers, self.seed, step))

    def seconds(self, worker: int, step: int) -> float:
        """Returns how long a worker computes in its step of a number."""
        if not self.jitter:
            return self.step_seconds[worker]
        return self.step_seconds[worker] * (1 + self.jitter * _exponential(self.workers, self.seed, step)[worker])


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link between each machine and the network.

    Args:
        latency_seconds: the time of an empty message.
        bytes_per_second: the rate in each direction.

    Example:
        >>> Link(latency_seconds=0.001, bytes_per_second=1e6).seconds(500_000)
        0.501
    """

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (self.latency_seconds >= 0 and self.bytes_per_second > 0):
            raise ValueError(f"expected a latency of 0 or more, and a rate above 0, received {self}.")

    def seconds(self, size: float) -> float:
        """Returns the time of a message of `size` bytes."""
        return self.latency_seconds + size / self.bytes_per_second


def all_reduce_seconds(workers: int, *, size: float, link: Link) -> float:
    """Returns the time of a ring all-reduce of `size` bytes: 2 (n - 1) messages of 1/n of the bytes, one after another.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

    Example:
        >>> round(all_reduce_seconds(4, size=1e6, link=Link(latency_seconds=0.001, bytes_per_second=1e6)), 6)
        1.506
    """
    return 2 * (workers - 1) * link.seconds(size / workers)


def synchronous_times(machines: Machines, *, link: Link, size: float, steps: int) -> np.ndarray:
    """Returns when each step of synchronous SGD ends: after the slowest worker, and an all-reduce of the gradients.

    Args:
        machines: the workers.
        link: the link of each worker.
        size: the bytes of the gradients.
        steps: the number of steps.

    Example:
        >>> machines = Machines.alike(2, seconds=1.0, slow=1, factor=3)
        >>> synchronous_times(machines, link=Link(latency_seconds=0, bytes_per_second=1e6), size=1e6, steps=2)
        array([4., 8.])
    """
    return local_times(machines, link=link, size=size, steps=steps, meetings=(), start_step=steps)


def local_times(
    machines: Machines,
    *,
    link: Link,
    size: float,
    steps: int,
    meetings: Collection[int],
    start_step: int = 0,
    meeting_size: float | None = None,
) -> np.ndarray:
    """Returns when each step of local SGD has ended on all workers, with the meeting after it if there is one.

    Args:
        machines: the workers.
        link: the link of each worker.
        size: the bytes of the gradients, for the synchronous steps.
        steps: the number of steps.
        meetings: the steps after which the workers meet; see `Rounds.meetings`.
        start_step: the steps before this one are synchronous.
        meeting_size: the bytes that a meeting averages; those of the gradients if it is None.

    Example:
        >>> machines = Machines.alike(2, seconds=1.0)
        >>> link = Link(latency_seconds=0, bytes_per_second=1e6)
        >>> local_times(machines, link=link, size=2e6, steps=4, meetings=(1, 3))
        array([1., 4., 5., 8.])
    """
    now = np.zeros(machines.workers)
    ends = np.zeros(steps)
    together = set(meetings)
    for step in range(steps):
        now = now + machines.all_seconds(step)
        if step < start_step or step in together:
            sent = size if step < start_step or meeting_size is None else meeting_size
            now[:] = now.max() + all_reduce_seconds(machines.workers, size=sent, link=link)
        ends[step] = now.max()
    return ends


def gossip_times(machines: Machines, *, link: Link, size: float, steps: int, mixing: Mixing) -> np.ndarray:
    """Returns when each step of D-PSGD has ended on all workers.

    A worker sends its weights to its peers, one after the other, while it computes. Its step ends when it has computed
    and has received the weights of its peers. A slow worker delays its peers only, and their peers in the next step.

    Args:
        machines: the workers.
        link: the link of each worker.
        size: the bytes of the weights.
        steps: the number of steps.
        mixing: the peers of each worker.

    Example:
        >>> from tfdist.averaging import ring
        >>> machines = Machines.alike(4, seconds=1.0)
        >>> link = Link(latency_seconds=0, bytes_per_second=1e6)
        >>> gossip_times(machines, link=link, size=1e6, steps=2, mixing=ring(4))
        array([2., 4.])
    """
    now = np.zeros(machines.workers)
    ends = np.zeros(steps)
    for step in range(steps):
        offsets = [offset for offset, _ in mixing.weights(step) if offset]
        # Full duplex: a worker sends to as many peers as it receives from, at the same time.
        arrived = now + link.latency_seconds + len(offsets) * size / link.bytes_per_second
        ended = now + machines.all_seconds(step)
        for offset in offsets:
            ended = np.maximum(ended, np.roll(arrived, -offset))
        now = ended
        ends[step] = now.max()
    return ends


@lru_cache(maxsize=64)
def _exponential(workers: int, seed: int, step: int) -> np.ndarray:
    return np.random.default_rng([seed, step]).exponential(size=workers)
