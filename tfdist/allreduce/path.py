"""GradientPath: from each replica's gradients to their sums, as AllReduceOptions say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce.aggregation import Gradient, all_finite, is_dense
from tfdist.allreduce.options import AllReduceOptions
from tfdist.allreduce.options_of import all_reduce_of, options_of_path
from tfdist.allreduce.packed import packed_all_reduce
from tfdist.allreduce.per_replica import PerReplica
from tfdist.allreduce.streams import Streams

_COUNTERS = ("steps", "sent", "uncompressed")


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What one replica has sent.

    Attributes:
        steps: how many all-reduces of gradients there were.
        sent: bytes, without headers, supposing a ring.
        uncompressed: bytes that it would have been without compression.
    """

    steps: int
    sent: float
    uncompressed: float

    @property
    def ratio(self) -> float:
        """How many times fewer bytes were sent; 1 without compression."""
        return self.uncompressed / self.sent if self.sent else 1.0


class GradientPath(tf.__internal__.tracking.AutoTrackable):
    """What happens to gradients between backprop and the optimizer, and what it has to remember.

    Args:
        options: bytes_per_pack and compression; the others, and these where they are None, are the strategy's.
    """

    def __init__(self, options: AllReduceOptions | None) -> None:
        super().__init__()
        self._asked = options
        self.options = options or AllReduceOptions()
        self._variables: dict[str, PerReplica] = {}
        self._compressed: list[int] = []
        self._built = False

    def build(self, shapes: Sequence[tuple[int, ...] | None], dtypes: Sequence[str]) -> None:
        """Makes the variables; once, outside of replicas, in the scope of the strategy.

        Args:
            shapes: of the gradients; None where it is sparse or missing.
            dtypes: of the gradients.
        """
        strategy = tf.distribute.get_strategy()
        self.options = options_of_path(self._asked, all_reduce_of(strategy))
        compression = self.options.compressor
        self._built = True
        self._replicas = strategy.num_replicas_in_sync
        if compression is None or self._replicas == 1:
            return
        self._compressed = [
            i
            for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
            if shape is not None and dtype == "float32" and compression.takes(shape)
        ]
        taken = [shape for i, shape in enumerate(shapes) if i in self._compressed and shape is not None]
        # Into the dictionary that a checkpoint may have been restored to already. What is of one gradient has the
        # number of its variable, so that a residual goes on under another compression.
        for one in compression.variables(taken):
            base, number = _numbered(one.name)
            name = one.name if number is None else f"{base}{self._compressed[number]}"
            self._variables[name] = PerReplica(one.initial, name=name, shared=one.initial.ndim == 0)
        for name in _COUNTERS:
            self._variables[name] = PerReplica(tf.zeros([], tf.float64), name=name, shared=True)
        elements = sum(shape.num_elements() for shape in map(tf.TensorShape, taken))
        total = sum(tf.TensorShape(shape).num_elements() for shape in shapes if shape is not None)
        get_logger().info(
            "gradients: %s of %s dense elements go through %s, asked for ratio %s; the others as they are",
            f"{elements:,}",
            f"{total:,}",
            compression,
            self._ratio(taken),
        )

    def _ratio(self, shapes: Sequence[tuple[int, ...]]) -> str:
        compression = self.options.compressor
        if compression is None or not shapes:
            return "1"
        sizes = [tf.TensorShape(shape).num_elements() for shape in shapes]
        sent = sum(size / compression.ratio(shape) for size, shape in zip(sizes, shapes, strict=True))
        return f"{sum(sizes) / sent:.1f}" if sent == sent else "of the gradients' own"

    @property
    def compresses(self) -> bool:
        """Whether gradients go compressed to other replicas, once it has its variables."""
        return self._built and self.options.compressor is not None and self._replicas > 1

    @property
    def built(self) -> bool:
        """Whether it has its variables."""
        return self._built

    def sum_gradients(
        self, gradients: Sequence[Gradient], *, indices: Sequence[int] | None = None, scale: Any = None
    ) -> list[Gradient]:
        """Returns each gradient's sum over all replicas; in replica context.

        Args:
            gradients: dense, IndexedSlices, or None; the same kinds in the same order on every replica.
            indices: of these among the gradients that it was built for; None for all of them in their order.
            scale: the loss scale that they contain, by which residuals are kept unscaled; None for none.
        """
        sums: list[Gradient] = list(gradients)
        if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
            return sums
        streams = Streams(bytes_per_pack=self.options.bytes_per_pack)
        places = range(len(sums)) if indices is None else indices
        # Which of them are compressed, and in whose place: what a compression keeps is of one variable.
        taken = {i: place for i, place in enumerate(places) if place in self._compressed and is_dense(gradients[i])}
        plain = [i for i, gradient in enumerate(gradients) if is_dense(gradient) and i not in taken]
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                sums[i] = streams.all_reduce_slices(gradient)
        for i, total in zip(plain, packed_all_reduce([gradients[i] for i in plain], streams), strict=True):
            sums[i] = total
        plainly = streams.sent
        if taken:
            self._exchange(gradients, sums, taken, streams, scale)
        if self.compresses:
            totals: list[Any] = [sums[i] for i in taken]
            elements = sum(total.shape.num_elements() for total in totals)
            self._count(streams.sent, plainly + 4 * elements * 2 * (self._replicas - 1) / self._replicas)
        return sums

    def _count(self, sent: Any, uncompressed: Any) -> None:
        for name, more in (("steps", 1), ("sent", sent), ("uncompressed", uncompressed)):
            counter = self._variables[name]
            counter.assign(counter.read() + tf.cast(more, tf.float64))

    def _exchange(
        self, gradients: Sequence[Gradient], sums: list[Gradient], taken: dict[int, int], streams: Streams, scale: Any
    ) -> None:
        compression = self.options.compressor
        assert compression is not None
        # The compression numbers what it keeps by the gradients that it is given, which may be some of all.
        numbers: dict[int | None, str] = {None: "", **{place: str(i) for i, place in enumerate(taken.values())}}
        own = {}
        for name in self._variables:
            base, place = _numbered(name)
            if name not in _COUNTERS and place in numbers:
                own[f"{base}{numbers[place]}"] = name
        kept = {name: self._variables[of].read() for name, of in own.items()}
        if scale is not None:
            kept.update({name: value * scale for name, value in kept.items() if name.startswith("residual")})
        found = compression.exchange(
            [gradients[i] for i in taken], kept, streams, scale=1.0 if scale is None else scale
        )
        for i, total in zip(taken, found.totals, strict=True):
            sums[i] = total
        after = {
            own[name]: value / scale if scale is not None and name.startswith("residual") else value
            for name, value in found.kept.items()
        }
        parts = [one.values if isinstance(one, tf.IndexedSlices) else one for one in sums if one is not None]
        # Totals are the same on every replica, and so is what they decide.
        finite = all_finite(parts)
        tf.cond(
            finite,
            lambda: tf.group([self._variables[name].assign(value) for name, value in after.items()]),
            tf.no_op,
        )

    def traffic(self) -> Traffic:
        """Returns what the first replica of this process has sent; outside of replicas."""
        if "sent" not in self._variables:
            return Traffic(0, 0.0, 0.0)
        steps, sent, uncompressed = (float(self._variables[name].local()) for name in _COUNTERS)
        return Traffic(int(steps), sent, uncompressed)


def _numbered(name: str) -> tuple[str, int | None]:
    """Returns a name without the number behind it, and the number."""
    base = name.rstrip("0123456789")
    return base, int(name[len(base) :]) if base != name else None
