"""TopK: sends the largest elements of each gradient, with their positions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdist.allreduce.compression.base import Compression, CompressionState, Exchanged

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.allreduce.streams import Streams

# The density that the warmup of Deep Gradient Compression starts with.
_FIRST_DENSITY = 0.25
# The search divides a gradient into this many rows per element to find: enough rows to bound the k-th largest element,
# and few enough that the rows' maxima are quickly sorted.
_ROWS_PER_ELEMENT = 4


@dataclasses.dataclass(frozen=True)
class TopK(Compression):
    """Sends the elements of each gradient with the largest magnitudes, in 8 bytes each.

    Each replica chooses the elements that it sends, and receives those of all other replicas. Use TopK with error
    feedback, `ErrorFeedback(TopK(0.01))`, as the name "topk" does: without it training does not converge, since the
    other elements are lost.

    Args:
        density: fraction of the elements that is sent, above 0 and at most 0.25.
        warmup_steps: number of steps during which the density decreases exponentially from 0.25 to `density`.

    Raises:
        ValueError: if `density` or `warmup_steps` is out of range.

    Source: Lin et al. 2018, Deep Gradient Compression (1712.01887).

    Example:
        >>> from tfdist.allreduce import TopK
        >>> TopK(0.001).ratio((1000, 1000))
        500.0
    """

    density: float = 0.01
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.density <= _FIRST_DENSITY:
            raise ValueError(
                f"expected a density of topk above 0 and at most {_FIRST_DENSITY}, received {self.density!r}; "
                "0.01 sends one element of a hundred."
            )
        if isinstance(self.warmup_steps, bool) or not isinstance(self.warmup_steps, int) or self.warmup_steps < 0:
            raise ValueError(
                f"expected warmup_steps of topk to be a whole number, at least 0, received {self.warmup_steps!r}; "
                "leave it out for none."
            )

    def takes(self, shape: tuple[int, ...]) -> bool:
        """See the base class."""
        return math.prod(shape) >= self.smallest

    def ratio(self, shape: tuple[int, ...]) -> float:
        """See the base class."""
        elements = math.prod(shape)
        return elements / (2 * math.ceil(self.density * elements))

    def initial_state(self, shapes: Sequence[tuple[int, ...]]) -> CompressionState:
        """See the base class."""
        import numpy as np

        return CompressionState(shared={"step": np.zeros([], np.int64)} if self.warmup_steps else {})

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

        density: tf.Tensor | float = self.density
        if self.warmup_steps:
            share = tf.minimum(tf.cast(state.shared["step"], tf.float32) / self.warmup_steps, 1.0)
            density = _FIRST_DENSITY * tf.pow(self.density / _FIRST_DENSITY, share)
        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]
        places = [largest(one, _count(one, density)) for one in flat]
        sizes = [one.shape[0] for one in flat]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        # A last value: NaN if any element is not finite, since such an element may not be among those sent; else zero.
        spoilt = tf.where(all_finite(flat), 0.0, math.nan)
        values = tf.concat([*(tf.gather(one, at) for one, at in zip(flat, places, strict=True)), [spoilt]], 0)
        indices = tf.concat([*(at + start for at, start in zip(places, starts, strict=True)), [0]], 0)
        message = tf.stack([tf.bitcast(values, tf.int32), indices], axis=1)
        everyones = streams.all_gather(message)
        total = tf.scatter_nd(everyones[:, 1:], tf.bitcast(everyones[:, 0], tf.float32), [sum(sizes)])
        unsent = [
            tf.tensor_scatter_nd_update(one, at[:, None], tf.zeros_like(at, tf.float32))
            for one, at in zip(flat, places, strict=True)
        ]
        shared = {"step": state.shared["step"] + 1} if self.warmup_steps else {}
        return Exchanged(
            totals=[tf.reshape(part, g.shape) for part, g in zip(tf.split(total, sizes), gradients, strict=True)],
            residuals=[tf.reshape(part, g.shape) for part, g in zip(unsent, gradients, strict=True)],
            state=CompressionState(shared=shared),
        )


def _count(flat: tf.Tensor, density: tf.Tensor | float) -> tf.Tensor | int:
    import tensorflow as tf

    size = flat.shape[0]
    if isinstance(density, float):
        return math.ceil(density * size)
    return tf.maximum(tf.cast(tf.math.ceil(density * size), tf.int32), 1)


def largest(flat: tf.Tensor, count: tf.Tensor | int) -> tf.Tensor:
    """Returns the positions of the elements with the largest magnitudes, in any order.

    The elements are divided into rows. The k-th largest of the rows' maxima is a lower bound of the k-th largest
    element, so that only the few elements above the bound are sorted.

    Args:
        flat: a tensor of one axis of a known size.
        count: number of elements to find; at most a quarter of all.
    """
    import tensorflow as tf

    size = flat.shape[0]
    # NaN counts as infinite, so that it is found.
    magnitude = tf.where(tf.math.is_nan(flat), math.inf, tf.abs(flat))
    if isinstance(count, int):
        width = max(size // (_ROWS_PER_ELEMENT * count), 1)
        if width > 1:
            rows = size // width
            maxima = tf.reduce_max(tf.reshape(magnitude[: rows * width], [rows, width]), axis=1)
            bound = tf.math.top_k(maxima, count, sorted=False).values
            candidates = tf.cast(tf.where(magnitude >= tf.reduce_min(bound))[:, 0], tf.int32)
            best = tf.math.top_k(tf.gather(magnitude, candidates), count, sorted=False).indices
            return tf.gather(candidates, best)
    return tf.math.top_k(magnitude, count, sorted=False).indices
