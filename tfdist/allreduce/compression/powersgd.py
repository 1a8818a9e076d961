"""PowerSGD: sends two thin matrices instead of a large one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdist.allreduce.compression.base import Compression, CompressionState, Exchanged

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.allreduce.streams import Streams


@dataclasses.dataclass(frozen=True)
class PowerSGD(Compression):
    """Sends an approximation of low rank of each gradient.

    A gradient is reshaped to a matrix whose columns are its last axis and whose rows are all its other axes. Each step
    makes one iteration of the power method, which starts with the factors of the last step. The factors are summed with
    plain all-reduces, so that the number of bytes hardly depends on the number of replicas. Use PowerSGD with error
    feedback, `ErrorFeedback(PowerSGD(4))`, as the name "powersgd" does: without it training does not converge, since
    the part of a gradient that exceeds the rank is lost.

    Args:
        rank: rank of the approximation, at least 1.

    Raises:
        ValueError: if the rank is not a whole number of at least 1.

    Source: Vogels, Karimireddy and Jaggi 2019 (1905.13727).

    Example:
        >>> from tfdist.allreduce import PowerSGD
        >>> PowerSGD(4).ratio((1000, 1000))
        125.0
    """

    rank: int = 4

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise ValueError(
                f"expected rank of powersgd to be a whole number, at least 1, received {self.rank!r}; 1 to 4 are usual."
            )

    def takes(self, shape: tuple[int, ...]) -> bool:
        """See the base class."""
        return math.prod(shape) >= self.smallest and len(shape) > 1 and self.ratio(shape) > 1

    def ratio(self, shape: tuple[int, ...]) -> float:
        """See the base class."""
        rows, columns = _matrix(shape)
        return rows * columns / ((rows + columns) * self.rank)

    def initial_state(self, shapes: Sequence[tuple[int, ...]]) -> CompressionState:
        """See the base class."""
        import numpy as np

        rng = np.random.default_rng(0)
        factors = (rng.normal(size=(_matrix(shape)[1], self.rank)).astype(np.float32) for shape in shapes)
        return CompressionState(of_gradients=tuple({self._factor: factor} for factor in factors))

    @property
    def _factor(self) -> str:
        # The name contains the rank, since the factors in a checkpoint of another rank have another shape.
        return f"rank{self.rank}_factor"

    def exchange(
        self,
        gradients: Sequence[tf.Tensor],
        state: CompressionState,
        streams: Streams,
        *,
        scale: tf.Tensor | float = 1.0,
    ) -> Exchanged:
        """See the base class."""
        import tensorflow as tf

        from tfdist.allreduce.packed import packed_all_reduce

        matrices = [tf.reshape(gradient, _matrix(tuple(gradient.shape))) for gradient in gradients]
        factors = [values[self._factor] for values in state.of_gradients]
        left_factors = packed_all_reduce([m @ factor for m, factor in zip(matrices, factors, strict=True)], streams)
        bases = [tf.linalg.qr(factor).q for factor in left_factors]
        own = [tf.matmul(m, p, transpose_a=True) for m, p in zip(matrices, bases, strict=True)]
        sums = packed_all_reduce(own, streams)

        def product(factors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return [tf.matmul(p, q, transpose_b=True) for p, q in zip(bases, factors, strict=True)]

        # Factors of zero would stay zero for ever: if all gradients of a step are zero, the old factors are kept.
        after = [
            tf.where(tf.reduce_any(new != 0, axis=0, keepdims=True), new, old)
            for new, old in zip(sums, factors, strict=True)
        ]
        unsent = [matrix - sent for matrix, sent in zip(matrices, product(own), strict=True)]
        return Exchanged(
            totals=[tf.reshape(total, g.shape) for total, g in zip(product(sums), gradients, strict=True)],
            residuals=[tf.reshape(residual, g.shape) for residual, g in zip(unsent, gradients, strict=True)],
            state=CompressionState(of_gradients=tuple({self._factor: factor} for factor in after)),
        )


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1] if shape else 1
