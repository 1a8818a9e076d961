"""ElasticAverage: replicas keep weights of their own, which an elastic force draws to a common center."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElasticAverage:
    """Moves each replica towards the center, and the center towards all replicas (EASGD).

    At a meeting x_i <- x_i - rate (x_i - center), and center <- center + sum of rate (x_i - center), with the values
    from before the meeting, and after the local step; the paper computes the next gradient before it moves the weights.
    The replicas keep weights of their own; evaluation and saving use the center.

    Args:
        rate: the elastic rate alpha of the paper, above 0 and below 1. Times the number of replicas it should be below
            1; the paper takes 0.9 divided by that number.

    Raises:
        ValueError: if the rate is out of its range.

    Source: Zhang, Choromanska and LeCun 2015 (1412.6651).

    Example:
        >>> from tfdist.averaging import ElasticAverage
        >>> rule = ElasticAverage(rate=0.25)
        >>> part = rule.part(10.0, 6.0, 0.5)
        >>> rule.next(10.0, 6.0, part, part + 1.0, ())
        (7.0, 8.0, ())
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"expected the rate of ElasticAverage to be above 0 and below 1, received {self.rate}.")

    @property
    def slots(self) -> tuple[str, ...]:
        """See OuterRule."""
        return ()

    @property
    def keeps_own(self) -> bool:
        """See OuterRule."""
        return True

    def part(self, anchor: Any, own: Any, weight: Any) -> Any:
        """See OuterRule; the weight is not used."""
        return self.rate * (anchor - own)

    def next(self, anchor: Any, own: Any, part: Any, total: Any, slots: tuple[Any, ...]) -> tuple[Any, Any, tuple]:
        """See OuterRule."""
        return own + part, anchor - total, ()
