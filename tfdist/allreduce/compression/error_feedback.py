"""ErrorFeedback: what a compression leaves unsent is added to the next gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdist.allreduce.compression.base import Compression, Exchanged, Variable

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.allreduce.streams import Streams


@dataclasses.dataclass(frozen=True)
class ErrorFeedback(Compression):
    """Wraps a compression, and keeps on every replica what it has not sent, for the next step.

    Sent and residual are together the gradient and the old residual, to the last bit, but for PowerSGD, whose products
    are rounded, and for what is above 65,536 times Threshold's tau. A step whose gradients are not finite leaves
    residuals as they are.

    Args:
        inner: the compression.

    Raises:
        ValueError: for anything else than a compression without error feedback.

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

    def variables(self, shapes: Sequence[tuple[int, ...]]) -> list[Variable]:
        """See the base class."""
        import numpy as np

        residuals = [Variable(f"residual{i}", np.zeros(shape, np.float32)) for i, shape in enumerate(shapes)]
        return [*residuals, *self.inner.variables(shapes)]

    def exchange(
        self,
        gradients: Sequence[tf.Tensor],
        kept: dict[str, tf.Tensor],
        streams: Streams,
        *,
        scale: tf.Tensor | float = 1.0,
    ) -> Exchanged:
        """See the base class."""
        together = [gradient + kept[f"residual{i}"] for i, gradient in enumerate(gradients)]
        found = self.inner.exchange(together, kept, streams, scale=scale)
        return dataclasses.replace(found, kept={**found.kept, **{f"residual{i}": r for i, r in enumerate(found.left)}})
