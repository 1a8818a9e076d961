"""Traffic: counts the bytes that are sent with compression, and those that would be sent without."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfdist.allreduce.per_replica import PerReplica

_NAMES = ("steps", "sent", "uncompressed")


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The number of bytes that one replica has sent.

    Attributes:
        steps: number of steps whose gradients were sent.
        sent: number of bytes, without headers, if replicas form a ring.
        uncompressed: number of bytes that the same gradients take without compression.

    Example:
        >>> from tfdist.allreduce import Traffic
        >>> Traffic(steps=10, sent=50.0, uncompressed=100.0).ratio
        2.0
    """

    steps: int
    sent: float
    uncompressed: float

    @property
    def ratio(self) -> float:
        """The bytes without compression divided by the bytes sent; 1 if nothing was sent."""
        return self.uncompressed / self.sent if self.sent else 1.0


class TrafficCounter:
    """Counts traffic in variables that checkpoints store.

    Args:
        variables: the dictionary that `build` adds the counters to.
    """

    def __init__(self, variables: dict[str, PerReplica]) -> None:
        self._variables = variables

    def build(self) -> None:
        """Makes the counters; called in cross-replica context, in the scope of the strategy."""
        for name in _NAMES:
            self._variables[name] = PerReplica(tf.zeros([], tf.float64), name=name, shared=True)

    def add(self, *, sent: Any, uncompressed: Any) -> None:
        """Counts one step; called in replica context.

        Args:
            sent: number of bytes that this replica has sent.
            uncompressed: number of bytes that the step would send without compression.
        """
        for name, more in zip(_NAMES, (1, sent, uncompressed), strict=True):
            counter = self._variables[name]
            counter.assign(counter.read() + tf.cast(more, tf.float64))

    def read(self) -> Traffic:
        """Returns the traffic of the first replica of this process; called in cross-replica context."""
        if "sent" not in self._variables:
            return Traffic(0, 0.0, 0.0)
        steps, sent, uncompressed = (float(self._variables[name].local()) for name in _NAMES)
        return Traffic(int(steps), sent, uncompressed)
