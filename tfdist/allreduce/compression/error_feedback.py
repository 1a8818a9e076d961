"""ErrorFeedback: adds the part of a gradient that a compression has not sent to the next gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdist.allreduce.compression.base import Compression, CompressionState, Exchanged

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.allreduce.streams import Streams


@dataclasses.dataclass(frozen=True)
class ErrorFeedback(Compression):
    """Wraps a compression, and adds the residual of each replica to its next gradient.

    The residual is the part that the replica has not sent. The sum of the values sent and the new residual is exactly
    the gradient plus the old residual, with two exceptions: PowerSGD, whose matrix products are rounded, and elements
    above 65,536 times the tau of Threshold. A step whose gradients are not finite does not change the residuals.

    Args:
        inner: the compression to wrap.

    Raises:
        ValueError: if `inner` is not a compression, or has error feedback already.

    Source: Seide et al. 2014, 1-Bit Stochastic Gradient Descent; Karimireddy et al. 2019 (1901.09847).

    Example:
        >>> from tfdist.allreduce import ErrorFeedback, TopK
        >>> ErrorFeedback(TopK(0.01)).inner.density
        0.01
    """

    inner: Compression

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Compression) or isinstance(self.inner, ErrorFeedback):
            raise ValueError(
                f"expected a compression without error feedback, received {self.inner!r}; "
                "write for example ErrorFeedback(TopK(0.01))."
            )

    def takes(self, shape: tuple[int, ...]) -> bool:
        """See the base class."""
        return self.inner.takes(shape)

    def ratio(self, shape: tuple[int, ...]) -> float:
        """See the base class."""
        return self.inner.ratio(shape)

    def initial_state(self, shapes: Sequence[tuple[int, ...]]) -> CompressionState:
        """See the base class."""
        import numpy as np

        residuals = tuple(np.zeros(shape, np.float32) for shape in shapes)
        return dataclasses.replace(self.inner.initial_state(shapes), residuals=residuals)

    def exchange(
        self,
        gradients: Sequence[tf.Tensor],
        state: CompressionState,
        streams: Streams,
        *,
        scale: tf.Tensor | float = 1.0,
    ) -> Exchanged:
        """See the base class."""
        corrected = [gradient + residual for gradient, residual in zip(gradients, state.residuals, strict=True)]
        exchanged = self.inner.exchange(corrected, state, streams, scale=scale)
        after = dataclasses.replace(exchanged.state, residuals=tuple(exchanged.residuals))
        return dataclasses.replace(exchanged, state=after)
