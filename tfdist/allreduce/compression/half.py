"""FP16 and BF16: gradients cast to two bytes an element, and summed as such."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdist.allreduce.compression.base import Compression, Exchanged

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
        kept: dict[str, tf.Tensor],
        streams: Streams,
        *,
        scale: tf.Tensor | float = 1.0,
    ) -> Exchanged:
        """See the base class."""
        import tensorflow as tf

        from tfdist.allreduce.packed import packed_all_reduce

        sent = [tf.cast(gradient, self._dtype) for gradient in gradients]
        totals = [tf.cast(total, tf.float32) for total in packed_all_reduce(sent, streams)]
        left = [gradient - tf.cast(one, tf.float32) for gradient, one in zip(gradients, sent, strict=True)]
        return Exchanged(totals, left)


@dataclasses.dataclass(frozen=True)
class FP16(_Half):
    """Sends float16: eleven binary digits, from 6e-8 to 65504; a larger sum is infinite, and the step is spoilt.

    Use loss scaling where gradients are small, as for a network in float16. Source: Micikevicius et al. 2018
    (1710.03740).

    Example:
        >>> from tfdist.allreduce import FP16
        >>> FP16().ratio((1024, 1024))
        2.0
    """

    _dtype = "float16"


@dataclasses.dataclass(frozen=True)
class BF16(_Half):
    """Sends bfloat16: eight binary digits, and the range of float32.

    Source: Kalamkar et al. 2019 (1905.12322).

    Example:
        >>> from tfdist.allreduce import BF16
        >>> BF16().ratio((10,))
        2.0
    """

    _dtype = "bfloat16"
