"""FP16 and BF16: cast gradients to two bytes per element, and sum them in that dtype."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdist.allreduce.compression.base import Compression, CompressionState, Exchanged

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.allreduce.streams import Streams


@dataclasses.dataclass(frozen=True)
class _Half(Compression):
    _dtype = ""

    def takes(self, shape: tuple[int, ...]) -> bool:
        """See the base class."""
        return True

    def ratio(self, shape: tuple[int, ...]) -> float:
        """See the base class."""
        return 2.0

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

        sent = [tf.cast(gradient, self._dtype) for gradient in gradients]
        totals = [tf.cast(total, tf.float32) for total in packed_all_reduce(sent, streams)]
        residuals = [gradient - tf.cast(half, tf.float32) for gradient, half in zip(gradients, sent, strict=True)]
        return Exchanged(totals=totals, residuals=residuals)


@dataclasses.dataclass(frozen=True)
class FP16(_Half):
    """Sends float16: eleven binary digits, magnitudes from 6e-8 to 65504. A larger sum becomes infinite.

    Use loss scaling if gradients are small, as for a network in float16: it also skips a step with an infinite sum.

    Source: Micikevicius et al. 2018 (1710.03740).

    Example:
        >>> from tfdist.allreduce import FP16
        >>> FP16().ratio((1024, 1024))
        2.0
    """

    _dtype = "float16"


@dataclasses.dataclass(frozen=True)
class BF16(_Half):
    """Sends bfloat16: eight binary digits, with the range of float32.

    Source: Kalamkar et al. 2019 (1905.12322).

    Example:
        >>> from tfdist.allreduce import BF16
        >>> BF16().ratio((10,))
        2.0
    """

    _dtype = "bfloat16"
