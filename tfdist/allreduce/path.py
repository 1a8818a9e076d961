"""GradientPath: sums the gradients of all replicas with the packs and the compression of AllReduceOptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce.aggregation import Gradient, all_finite, is_dense
from tfdist.allreduce.compression import Compression, CompressionState
from tfdist.allreduce.deadline import within_deadline
from tfdist.allreduce.options import AllReduceOptions
from tfdist.allreduce.options_of import all_reduce_of, options_of_path
from tfdist.allreduce.packed import packed_all_reduce
from tfdist.allreduce.per_replica import PerReplica
from tfdist.allreduce.streams import Streams
from tfdist.allreduce.traffic import Traffic, TrafficCounter


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Held:
    """The variables of one compressed gradient: its residual, and the values of the compression by name."""

    residual: PerReplica | None
    values: dict[str, PerReplica]


class GradientPath(tf.__internal__.tracking.AutoTrackable):
    """Sums gradients over replicas, and owns the variables of their compression.

    Args:
        options: bytes_per_pack and compression; None stands for the option of the strategy. The other options are those
            of the strategy in any case.

    Raises:
        ValueError: if the options are of another type.
    """

    _held: dict[int, _Held]
    _shared: dict[str, PerReplica]
    _counter: TrafficCounter

    def __init__(self, options: AllReduceOptions | None) -> None:
        super().__init__()
        if options is not None and not isinstance(options, AllReduceOptions):
            raise ValueError(
                f"expected all_reduce to be a value of AllReduceOptions or None, received {options!r}; for a "
                "compression, write AllReduceOptions(compression=...)."
            )
        self.asked = options
        self.options = options or AllReduceOptions()
        self.built = False
        # Checkpoints store this dictionary. The attributes below refer to the same variables by their meaning; they are
        # assigned with object.__setattr__, so that checkpoints do not store the variables twice.
        self._variables: dict[str, PerReplica] = {}
        object.__setattr__(self, "_held", {})
        object.__setattr__(self, "_shared", {})
        object.__setattr__(self, "_counter", TrafficCounter(self._variables))

    def build(self, shapes: Sequence[tuple[int, ...] | None], dtypes: Sequence[str]) -> None:
        """Makes the variables; called once, in cross-replica context, in the scope of the strategy.

        Args:
            shapes: shape of each gradient; None for a sparse gradient.
            dtypes: name of each gradient's dtype.
        """
        strategy = tf.distribute.get_strategy()
        self.options = options_of_path(self.asked, all_reduce_of(strategy))
        compression = self.options.compressor
        self.built = True
        self.replicas = strategy.num_replicas_in_sync
        if compression is None or self.replicas == 1:
            return
        taken = {
            place: shape
            for place, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
            if shape is not None and dtype == "float32" and compression.takes(shape)
        }
        first = compression.initial_state(list(taken.values()))
        for number, place in enumerate(taken):
            # Named after the place of the gradient and not after the compression, so that a checkpoint restores the
            # residual also under another compression.
            residual = self._make(f"residual{place}", first.residuals[number]) if first.residuals else None
            values = first.of_gradients[number] if first.of_gradients else {}
            made = {name: self._make(f"{name}{place}", initial) for name, initial in values.items()}
            self._held[place] = _Held(residual=residual, values=made)
        for name, initial in first.shared.items():
            self._shared[name] = self._make(name, initial, shared=True)
        self._counter.build()
        _log_what_is_compressed(compression, list(taken.values()), shapes)

    def _make(self, name: str, initial: Any, *, shared: bool = False) -> PerReplica:
        # If a checkpoint was restored before the variable was made, this assignment restores the variable.
        self._variables[name] = PerReplica(initial, name=name, shared=shared)
        return self._variables[name]

    @property
    def compresses(self) -> bool:
        """Whether gradients are sent compressed; False until `build` is called."""
        return self.built and self.options.compressor is not None and self.replicas > 1

    @property
    def compressed(self) -> list[int]:
        """The places of the gradients that are sent compressed."""
        return list(self._held)

    @property
    def variables(self) -> list[PerReplica]:
        """The variables of the compression."""
        return list(self._variables.values())

    def residuals(self) -> dict[int, PerReplica]:
        """Returns the residuals of error feedback, by the place of their gradient."""
        return {place: held.residual for place, held in self._held.items() if held.residual is not None}

    def sum_gradients(
        self, gradients: Sequence[Gradient], *, indices: Sequence[int] | None = None, scale: Any = None
    ) -> list[Gradient]:
        """Returns each gradient's sum over all replicas; called in replica context.

        Args:
            gradients: dense tensors, IndexedSlices, or None; of the same kinds in the same order on every replica.
            indices: the place of each gradient among those that the path was built for; None if they are all of them.
            scale: the loss scale that the gradients contain, or None. Residuals are stored without it.
        """
        sums: list[Gradient] = list(gradients)
        if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
            return sums
        streams = Streams(bytes_per_pack=self.options.bytes_per_pack)
        places = range(len(sums)) if indices is None else indices
        # The position of each compressed gradient in `gradients`, and its place: a residual belongs to one variable.
        compressed = {i: place for i, place in enumerate(places) if place in self._held and is_dense(gradients[i])}
        plain = [i for i, gradient in enumerate(gradients) if is_dense(gradient) and i not in compressed]
        with within_deadline(gradients, sums):
            for i, gradient in enumerate(gradients):
                if isinstance(gradient, tf.IndexedSlices):
                    sums[i] = streams.all_reduce_slices(gradient)
            for i, total in zip(plain, packed_all_reduce([gradients[i] for i in plain], streams), strict=True):
                sums[i] = total
            sent_plain = streams.sent
            if compressed:
                self.exchange(gradients, sums, compressed, streams, scale)
        self.count([sums[i] for i in compressed], sent=streams.sent, sent_plain=sent_plain)
        return sums

    def count(self, totals: Sequence[Any], *, sent: Any, sent_plain: Any) -> None:
        """Counts the bytes of a step; called in replica context.

        Args:
            totals: the sums of the compressed gradients.
            sent: bytes that this replica has sent, with compression.
            sent_plain: bytes of them that are of uncompressed gradients.
        """
        if self.compresses:
            elements = sum(total.shape.num_elements() for total in totals)
            whole = 4 * elements * 2 * (self.replicas - 1) / self.replicas
            self._counter.add(sent=sent, uncompressed=sent_plain + whole)

    def exchange(
        self, gradients: Sequence[Gradient], sums: list[Gradient], taken: dict[int, int], streams: Streams, scale: Any
    ) -> None:
        """Sums the compressed gradients, and updates the compression's variables if all sums are finite.

        Args:
            gradients: the gradients of this replica.
            sums: where the sums are put, at the positions of the compressed gradients.
            taken: the positions of the compressed gradients, and their places among those the path was built for.
            streams: the collectives to send with.
            scale: see sum_gradients.
        """
        compression = self.options.compressor
        assert compression is not None
        held = [self._held[place] for place in taken.values()]
        residuals = [one.residual for one in held if one.residual is not None]
        state = CompressionState(
            of_gradients=tuple({name: variable.read() for name, variable in one.values.items()} for one in held),
            shared={name: variable.read() for name, variable in self._shared.items()},
            residuals=tuple(_times(variable.read(), scale) for variable in residuals),
        )
        loss_scale = 1.0 if scale is None else scale
        found = compression.exchange([gradients[i] for i in taken], state, streams, scale=loss_scale)
        for i, total in zip(taken, found.totals, strict=True):
            sums[i] = total
        after: list[tuple[PerReplica, tf.Tensor]] = []
        for one, values in zip(held, found.state.of_gradients, strict=bool(found.state.of_gradients)):
            after += [(one.values[name], value) for name, value in values.items()]
        after += [(self._shared[name], value) for name, value in found.state.shared.items()]
        for variable, residual in zip(residuals, found.state.residuals, strict=True):
            after.append((variable, residual if scale is None else residual / scale))
        parts = [one.values if isinstance(one, tf.IndexedSlices) else one for one in sums if one is not None]
        # The sums are equal on all replicas, so that all replicas take the same branch.
        tf.cond(all_finite(parts), lambda: tf.group([one.assign(value) for one, value in after]), tf.no_op)

    def traffic(self) -> Traffic:
        """Returns how many bytes the first replica of this process has sent; called in cross-replica context."""
        return self._counter.read()


def _times(value: tf.Tensor, scale: Any) -> tf.Tensor:
    return value if scale is None else value * scale


def _log_what_is_compressed(
    compression: Compression, taken: Sequence[tuple[int, ...]], shapes: Sequence[tuple[int, ...] | None]
) -> None:
    sizes = [tf.TensorShape(shape).num_elements() for shape in taken]
    total = sum(tf.TensorShape(shape).num_elements() for shape in shapes if shape is not None)
    ratio = "1"
    if taken:
        sent = sum(size / compression.ratio(shape) for size, shape in zip(sizes, taken, strict=True))
        # Compressions return NaN for a ratio that depends on the gradients.
        ratio = f"{sum(sizes) / sent:.1f}" if sent == sent else "that depends on the gradients"
    get_logger().info(
        "gradients: %s of %s dense elements are compressed with %s, ratio %s; the others are sent uncompressed",
        f"{sum(sizes):,}",
        f"{total:,}",
        compression,
        ratio,
    )
