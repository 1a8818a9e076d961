"""GradientPath: from each replica's gradients to their sums, as AllReduceOptions say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce.aggregation import Gradient
from tfdist.allreduce.lanes import Lanes
from tfdist.allreduce.options import AllReduceOptions
from tfdist.allreduce.options_of import all_reduce_of, options_of_path
from tfdist.allreduce.packed import packed_all_reduce
from tfdist.allreduce.packs import DEFAULT_BYTES_PER_PACK
from tfdist.allreduce.per_replica import PerReplica


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
        options: bytes_per_pack and compression; the others are the strategy's. None takes those of the strategy.
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
        self._shapes = list(shapes)
        self._replicas = strategy.num_replicas_in_sync
        if compression is None or self._replicas == 1:
            return
        self._compressed = [
            i
            for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
            if shape is not None and dtype == "float32" and compression.takes(shape)
        ]
        taken = [shape for i, shape in enumerate(shapes) if i in self._compressed and shape is not None]
        # Into the dictionary that a checkpoint may have been restored to already.
        for one in compression.variables(taken):
            self._variables[one.name] = PerReplica(one.initial, name=one.name)
        self._variables["sent"] = PerReplica(tf.zeros([], tf.float64), name="sent")
        self._variables["steps"] = PerReplica(tf.zeros([], tf.int64), name="steps")
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
    def built(self) -> bool:
        """Whether it has its variables."""
        return self._built

    def sum_gradients(self, gradients: Sequence[Gradient], *, scale: Any = None) -> list[Gradient]:
        """Returns each gradient's sum over all replicas; in replica context.

        Args:
            gradients: dense, IndexedSlices, or None; the same kinds in the same order on every replica.
            scale: the loss scale that they contain, by which residuals are kept unscaled; None for none.
        """
        sums: list[Gradient] = list(gradients)
        if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
            return sums
        lanes = Lanes()
        sparse = [i for i, g in enumerate(gradients) if isinstance(g, tf.IndexedSlices)]
        taken = set(self._compressed) & {i for i, g in enumerate(gradients) if tf.is_tensor(g)}
        plain = [i for i, g in enumerate(gradients) if g is not None and i not in taken and i not in sparse]
        for i in sparse:
            sums[i] = lanes.all_reduce_slices(gradients[i])
        packed = packed_all_reduce(
            [gradients[i] for i in plain],
            lanes,
            bytes_per_pack=self.options.bytes_per_pack or DEFAULT_BYTES_PER_PACK,
        )
        for i, total in zip(plain, packed, strict=True):
            sums[i] = total
        if self._compressed:
            self._exchange(gradients, sums, lanes, scale)
        return sums

    def _exchange(self, gradients: Sequence[Gradient], sums: list[Gradient], lanes: Lanes, scale: Any) -> None:
        compression = self.options.compressor
        assert compression is not None
        # A variable that had no influence on this loss has a gradient of zero; its residual may still be sent.
        given = [
            tf.zeros(self._shapes[i]) if gradients[i] is None else tf.convert_to_tensor(gradients[i])
            for i in self._compressed
        ]
        before = {name: one.read() for name, one in self._variables.items()}
        residuals = [name for name in before if name.startswith("residual")]
        kept = dict(before)
        if scale is not None:
            kept.update({name: before[name] * scale for name in residuals})
        found = compression.exchange(given, kept, lanes)
        for i, total in zip(self._compressed, found.totals, strict=True):
            sums[i] = total
        after = dict(found.kept)
        if scale is not None:
            after.update({name: after[name] / scale for name in residuals})
        after["sent"] = before["sent"] + tf.cast(lanes.sent, tf.float64)
        after["steps"] = before["steps"] + 1
        parts = [one.values if isinstance(one, tf.IndexedSlices) else one for one in sums if one is not None]
        # Totals are the same on every replica, and so is what they decide.
        finite = tf.math.is_finite(tf.add_n([tf.cast(tf.reduce_sum(part * 0), tf.float32) for part in parts]))
        tf.cond(
            finite,
            lambda: tf.group([self._variables[name].assign(value) for name, value in after.items()]),
            tf.no_op,
        )

    def traffic(self) -> Traffic:
        """Returns what a replica of this worker has sent; outside of replicas, by every worker."""
        if "sent" not in self._variables:
            return Traffic(0, 0.0, 0.0)
        replicas = self._replicas
        sent, steps = (float(self._variables[name].values()[0]) for name in ("sent", "steps"))
        elements = sum(tf.TensorShape(shape).num_elements() for shape in self._shapes if shape is not None)
        return Traffic(int(steps), sent, steps * 4 * elements * 2 * (replicas - 1) / replicas)
