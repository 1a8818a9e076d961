"""Compression: the base class of all compressions, and the values that its methods take and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.allreduce.streams import Streams


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressionState:
    """Values that a compression keeps from step to step, separately on every replica.

    The initial values are NumPy arrays; in a step the values are tensors.

    Attributes:
        of_gradients: for each compressed gradient, its values by name; empty if there are none.
        shared: values that belong to the compression as a whole, by name, such as a step counter; scalars that are
            equal on all replicas.
        residuals: for each compressed gradient, the part that this replica has not sent so far, in the shape of the
            gradient; empty without error feedback.

    Example:
        >>> from tfdist.allreduce import ErrorFeedback, TopK
        >>> ErrorFeedback(TopK(0.01)).initial_state([(40, 30)]).residuals[0].shape
        (40, 30)
    """

    of_gradients: tuple[dict[str, Any], ...] = ()
    shared: dict[str, Any] = dataclasses.field(default_factory=dict)
    residuals: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exchanged:
    """The result of an exchange of gradients.

    Attributes:
        totals: for each gradient, the sum of the values that all replicas have sent; float32, in the shape of the
            gradient.
        residuals: for each gradient, the part that this replica has not sent; float32, in the shape of the gradient.
        state: the new state of the compression.

    Example:
        >>> from tfdist.allreduce import Exchanged
        >>> Exchanged(totals=[], residuals=[]).state.shared
        {}
    """

    totals: Sequence[tf.Tensor]
    residuals: Sequence[tf.Tensor]
    state: CompressionState = dataclasses.field(default_factory=CompressionState)


class Compression:
    """A method to send fewer bytes than a gradient has. Subclasses are frozen dataclasses of their options.

    A subclass implements `takes`, `ratio` and `exchange`, and `initial_state` if it keeps values between steps. If a
    gradient has an element that is not finite on any replica, a total must have one on all replicas: by such a total
    loss scaling and error feedback recognize a step to skip. Wrap an instance in ErrorFeedback to add the part of a
    gradient that one step has not sent to the gradient of the next step.

    LocalSGD with overlap=True computes an exchange anew for each of its collectives: `exchange` must not be a
    tf.function nor assign variables, and random numbers, if any, must depend on seeds in `state` alone.

    Attributes:
        smallest: number of elements below which compressing a gradient is not worth the time; for use in `takes`.

    Example:
        >>> import dataclasses
        >>> from tfdist.allreduce import Compression, Exchanged
        >>> @dataclasses.dataclass(frozen=True)
        ... class Plain(Compression):
        ...     def takes(self, shape):
        ...         return True
        ...     def ratio(self, shape):
        ...         return 1.0
        ...     def exchange(self, gradients, state, streams, *, scale=1.0):
        ...         return Exchanged(totals=streams.all_reduce(gradients), residuals=[g - g for g in gradients])
        >>> Plain().initial_state([(3,)]).shared
        {}
    """

    smallest: int = 1024

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Returns whether gradients of this shape are compressed; the others are sent uncompressed."""
        raise NotImplementedError

    def ratio(self, shape: tuple[int, ...]) -> float:
        """Returns how many times fewer bytes a replica sends for a gradient of this shape."""
        raise NotImplementedError

    def initial_state(self, shapes: Sequence[tuple[int, ...]]) -> CompressionState:
        """Returns the initial state for gradients of these shapes, as NumPy arrays."""
        return CompressionState()

    def exchange(
        self,
        gradients: Sequence[tf.Tensor],
        state: CompressionState,
        streams: Streams,
        *,
        scale: tf.Tensor | float = 1.0,
    ) -> Exchanged:
        """Sends this replica's gradients and returns the sums over replicas; called in replica context.

        Args:
            gradients: float32 tensors whose shapes `takes` accepts, in the order of the shapes given to
                `initial_state`.
            state: the state of this replica.
            streams: the collectives to send with.
            scale: the loss scale that the gradients contain.
        """
        raise NotImplementedError
