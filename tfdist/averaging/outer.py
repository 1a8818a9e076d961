"""Outer rules: how a meeting makes the next common weights out of the weights before and after the local steps.

The functions are arithmetic on one array. They take tensors or numpy arrays.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol


class OuterRule(Protocol):
    """How replicas combine their weights at a meeting.

    `anchor` is the array that all replicas had in common after the last meeting, `own` the replica's present array. The
    parts of all replicas are summed, and every replica computes its next array from the same sum.

    Attributes:
        slots: names of the arrays that the rule remembers between meetings; they begin with zeros.
        keeps_own: whether replicas have different weights after a meeting.

    Example:
        A rule of your own: half of the mean change.

        >>> import tensorflow as tf
        >>> from tfdist.averaging import LocalSGD
        >>> class HalfOfTheChange:
        ...     slots, keeps_own = (), False
        ...     def part(self, anchor, own, weight):
        ...         return weight * (anchor - own)
        ...     def next(self, anchor, own, part, total, slots):
        ...         return anchor - 0.5 * total, anchor - 0.5 * total, ()
        >>> optimizer = LocalSGD(tf.keras.optimizers.SGD(0.1), outer=HalfOfTheChange())
    """

    @property
    def slots(self) -> tuple[str, ...]:
        """See the class."""

    @property
    def keeps_own(self) -> bool:
        """See the class."""

    def part(self, anchor: Any, own: Any, weight: Any) -> Any:
        """Returns the replica's part of the sum; with overlap=True it is computed again when the sum has come.

        Args:
            anchor: the common array.
            own: the replica's array.
            weight: the replica's weight; the weights of all replicas add up to 1.
        """

    def next(self, anchor: Any, own: Any, part: Any, total: Any, slots: tuple[Any, ...]) -> tuple[Any, Any, tuple]:
        """Returns the replica's next array, the next common array, and the next slots.

        Args:
            anchor: the common array.
            own: the replica's array.
            part: what the replica has added to the sum.
            total: the sum of all parts.
            slots: the rule's slots.
        """


class _MeanChange:
    """The parts of a rule whose replicas all go on from the same weights, by the mean change of a round."""

    slots: ClassVar[tuple[str, ...]] = ()
    keeps_own: ClassVar[bool] = False

    def part(self, anchor: Any, own: Any, weight: Any) -> Any:
        """See OuterRule."""
        return weight * (anchor - own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WithMomentum(_MeanChange):
    """The options of a rule with a learning rate and momentum of its own."""

    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    rate: float
    momentum: float

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not self.rate > 0:
            raise ValueError(f"expected the rate of {name} to be above 0, received {self.rate}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"expected the momentum of {name} to be at least 0 and below 1, received {self.momentum}.")


@dataclasses.dataclass(frozen=True)
class Average(_MeanChange):
    """The weights become the average of the replicas' weights: Local SGD, or parameter averaging.

    Source: Stich 2018 (1805.09767); McMahan et al. 2016 (1602.05629) for weights by the number of rows.

    Example:
        >>> from tfdist.averaging import Average
        >>> rule = Average()
        >>> parts = [rule.part(10.0, own, 0.5) for own in (8.0, 9.0)]
        >>> rule.next(10.0, 8.0, parts[0], sum(parts), ())[0]
        8.5
    """

    def next(self, anchor: Any, own: Any, part: Any, total: Any, slots: tuple[Any, ...]) -> tuple[Any, Any, tuple]:
        """See OuterRule."""
        return anchor - total, anchor - total, ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockMomentum(_WithMomentum):
    """The mean change of a round moves the weights with momentum: u <- momentum u + change, x <- x - rate u.

    Args:
        rate: factor of the step of a meeting, above 0.
        momentum: how much of the former step remains, from 0 to below 1.

    Raises:
        ValueError: if an argument is out of its range.

    Source: Chen and Huo 2016, Scalable Training of Deep Learning Machines by Incremental Block Training (BMUF); Wang et
    al. 2019 (1910.00643, SlowMo), without SlowMo's division by the learning rate.

    Example:
        >>> from tfdist.averaging import BlockMomentum
        >>> BlockMomentum(rate=1.0, momentum=0.5).next(10.0, 8.0, 1.0, 2.0, (4.0,))
        (6.0, 6.0, (4.0,))
    """

    rate: float = 1.0
    momentum: float = 0.5

    def next(self, anchor: Any, own: Any, part: Any, total: Any, slots: tuple[Any, ...]) -> tuple[Any, Any, tuple]:
        """See OuterRule."""
        momentum = self.momentum * slots[0] + total
        after = anchor - self.rate * momentum
        return after, after, (momentum,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nesterov(_WithMomentum):
    """The mean change of a round is the gradient of SGD with Nesterov momentum: DiLoCo.

    Args:
        rate: learning rate of the meetings, above 0.
        momentum: momentum of the meetings, from 0 to below 1.

    Raises:
        ValueError: if an argument is out of its range.

    Source: Douillard et al. 2023 (2311.08105).

    Example:
        >>> from tfdist.averaging import Nesterov
        >>> Nesterov(rate=0.5, momentum=0.5).next(10.0, 8.0, 1.0, 2.0, (4.0,))
        (8.0, 8.0, (4.0,))
    """

    rate: float = 0.7
    momentum: float = 0.9

    def next(self, anchor: Any, own: Any, part: Any, total: Any, slots: tuple[Any, ...]) -> tuple[Any, Any, tuple]:
        """See OuterRule."""
        momentum = self.momentum * slots[0] + total
        after = anchor - self.rate * (total + self.momentum * momentum)
        return after, after, (momentum,)
