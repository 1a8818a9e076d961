"""Threshold: sends plus or minus tau for every element whose magnitude is at least tau."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdist.allreduce.compression.base import Compression, CompressionState, Exchanged

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.allreduce.streams import Streams

# With so few binary digits, tau is subtracted without rounding from every number up to 65536 tau.
_DIGITS = 8
# A word of 32 bits holds the position of one of so many elements, and a sign.
_MOST = 1 << 30


@dataclasses.dataclass(frozen=True)
class Threshold(Compression):
    """Sends +tau or -tau for each element whose magnitude is at least tau, in 4 bytes, and nothing for the others.

    The number of bytes depends on the gradients: the larger tau, the fewer elements are sent. Use Threshold with error
    feedback, `ErrorFeedback(Threshold(0.001))`, as the name "threshold" does: without it training does not converge,
    since the difference between a gradient and the values sent is lost.

    Args:
        tau: the magnitude of the values sent, above 0. Choose the size of the larger elements of a replica's gradient.
            It is rounded to eight binary digits, so that residuals are exact up to 65,536 times tau.

    Raises:
        ValueError: if tau is not a positive number.

    Source: Strom 2015, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing (Interspeech).

    Example:
        >>> from tfdist.allreduce import Threshold
        >>> Threshold(0.5).tau
        0.5
    """

    tau: float = 1e-3

    def __post_init__(self) -> None:
        if isinstance(self.tau, bool) or not isinstance(self.tau, (int, float)) or not 0 < self.tau < math.inf:
            raise ValueError(
                f"expected tau of threshold to be a positive number, received {self.tau!r}; "
                "choose the size of the larger elements of a gradient."
            )
        fraction, exponent = math.frexp(self.tau)
        object.__setattr__(self, "tau", math.ldexp(round(fraction * 2**_DIGITS), exponent - _DIGITS))

    def takes(self, shape: tuple[int, ...]) -> bool:
        """See the base class."""
        return math.prod(shape) >= self.smallest

    def ratio(self, shape: tuple[int, ...]) -> float:
        """See the base class."""
        # Unknown before the gradients are.
        return math.nan

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

        from tfdist.allreduce.aggregation import all_finite

        sizes = [gradient.shape.num_elements() for gradient in gradients]
        if sum(sizes) > _MOST:
            raise ValueError(
                f"expected gradients of at most {_MOST:,} elements for threshold, received {sum(sizes):,}; "
                "use topk or powersgd."
            )
        tau = self.tau * scale
        flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
        places = tf.cast(tf.where(tf.abs(flat) >= tau), tf.int32)
        values = tf.sign(tf.gather_nd(flat, places)) * tau
        # One word per element: twice its position, plus one if the element is negative.
        words = 2 * places[:, 0] + tf.cast(values < 0, tf.int32)
        finite = all_finite([flat])
        # The count is sent as a negative number if an element of this replica's gradients is not finite.
        count = tf.where(finite, tf.size(words), -1 - tf.size(words))
        counts = streams.all_gather(tf.reshape(count, [1]))
        spoilt = tf.reduce_any(counts < 0)
        counts = tf.where(counts < 0, -1 - counts, counts)
        # At least one word: in a collective of no elements TensorFlow divides by their number.
        longest = tf.maximum(tf.reduce_max(counts), 1)
        padded = tf.pad(words, [[0, longest - tf.size(words)]])
        everyones = tf.reshape(streams.all_gather(padded), [-1, longest])
        real = tf.sequence_mask(counts, longest, tf.float32)
        signs = real * (1 - 2 * tf.cast(everyones % 2, tf.float32))
        total = tf.scatter_nd(
            tf.reshape(everyones // 2, [-1, 1]), tf.reshape(signs, [-1]) * tau, [sum(sizes)]
        ) * tf.where(spoilt, float("nan"), 1.0)
        unsent = tf.tensor_scatter_nd_sub(flat, places, values)
        return Exchanged(
            totals=[tf.reshape(part, g.shape) for part, g in zip(tf.split(total, sizes), gradients, strict=True)],
            residuals=[tf.reshape(part, g.shape) for part, g in zip(tf.split(unsent, sizes), gradients, strict=True)],
        )
