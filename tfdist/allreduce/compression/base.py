"""What all compressions have in common: how they are asked, and what they answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.allreduce.streams import Streams


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable that a compression keeps on every replica from step to step.

    Attributes:
        name: unique within the compression.
        initial: its first value, an array of numpy; the same on every replica.
    """

    name: str
    initial: Any


@dataclasses.dataclass(frozen=True)
class Exchanged:
    """What came out of an exchange.

    Attributes:
        totals: for each gradient, the sum over replicas of what each of them has sent.
        left: for each gradient, what this replica has not sent of it.
        kept: new values of the variables, by name.
    """

    totals: list[tf.Tensor]
    left: list[tf.Tensor]
    kept: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)


class Compression:
    """How gradients are made smaller for the wire. A subclass is a frozen dataclass of its options.

    What is not finite on any replica must not be finite in the totals either: that is how a step is known as spoilt.
    """

    # Smaller tensors are sent as they are: they cost more to compress than to send.
    smallest: int = 1024

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a gradient of this shape becomes smaller by it; others are sent as they are."""
        raise NotImplementedError

    def ratio(self, shape: tuple[int, ...]) -> float:
        """Returns how many times fewer bytes a replica hands to the wire for a gradient of this shape."""
        raise NotImplementedError

    def variables(self, shapes: Sequence[tuple[int, ...]]) -> list[Variable]:
        """Returns what it keeps on every replica between steps, for gradients of these shapes."""
        return []

    def exchange(
        self,
        gradients: Sequence[tf.Tensor],
        kept: dict[str, tf.Tensor],
        streams: Streams,
        *,
        scale: tf.Tensor | float = 1.0,
    ) -> Exchanged:
        """Sends this replica's gradients and returns the sums; in replica context.

        Args:
            gradients: float32, those that it takes, in the order of `variables`.
            kept: values of its variables, by name.
            streams: to send with.
            scale: the loss scale that the gradients contain.
        """
        raise NotImplementedError
