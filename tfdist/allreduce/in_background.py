"""SumsInBackground: sums tensors over replicas while training goes on, compressed or not.

A compression sends in several collectives, of which each needs the result of the one before. Its exchange is computed
anew for each of them: with the results that have come, it goes as far as its next collective, which is started in the
background. What it computes for collectives that have come is not needed, and TensorFlow leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.compression import Compression, CompressionState
from tfdist.allreduce.deadline import within_deadline
from tfdist.allreduce.packed import Packing
from tfdist.allreduce.packs import DEFAULT_BYTES_PER_PACK
from tfdist.allreduce.path import GradientPath
from tfdist.allreduce.per_replica import PerReplica
from tfdist.allreduce.streams import Streams


class SumsInBackground:
    """Starts sums in one step, and finishes them in a later one.

    Made in cross-replica context, in the scope of the strategy. Its variables mean nothing to another process: they are
    not for checkpoints.

    Args:
        path: the path that is built for the tensors, with its compression.
        tensors: shapes and dtypes of the tensors.
        launchers: what starts collectives of the native transport, for each replica of this process.

    Raises:
        ValueError: if the compression gathers arrays whose size depends on the tensors, and then sends more.

    Attributes:
        stages: number of collectives that the compression makes one after another; 0 without compression.
    """

    def __init__(self, path: GradientPath, tensors: Sequence[tf.TensorSpec], launchers: Sequence[Any]) -> None:
        self._path, self._launchers = path, launchers
        self._bytes_per_pack = path.options.bytes_per_pack or DEFAULT_BYTES_PER_PACK
        self._taken = {i: i for i in path.compressed}
        self._plain = [i for i in range(len(tensors)) if i not in self._taken]
        # The native transport divides long messages itself.
        specs = [tensors[i] for i in self._plain]
        self._packing = Packing(specs, bytes_per_pack=self._bytes_per_pack, splits=False)
        self._numbers = _numbers(len(self._packing.specs), "operations")
        self._collectives: list[list[tf.TensorSpec]] = []
        if self._taken and path.options.compressor is not None:
            shapes = [tuple(tensors[i].shape) for i in self._taken]
            strategy = tf.distribute.get_strategy()
            self._collectives = collectives_of(path.options.compressor, shapes, strategy, self._bytes_per_pack)
        self.stages = len(self._collectives)
        # The collectives of this stage are on the way.
        self._stage = PerReplica(tf.zeros([], tf.int64), name="stage_of_compression")
        self._of_stage = [
            _numbers(len(specs), f"operations_of_stage{stage}") for stage, specs in enumerate(self._collectives)
        ]
        self._results = [
            [PerReplica(tf.zeros(spec.shape, spec.dtype), name=f"result{stage}") for spec in specs]
            for stage, specs in enumerate(self._collectives[:-1])
        ]

    def start(self, tensors: Sequence[tf.Tensor]) -> None:
        """Starts the sums; called in replica context.

        Args:
            tensors: the tensors of this replica.
        """
        launcher = self._launcher()
        packs = self._packing.pack([tensors[i] for i in self._plain])
        self._numbers.assign(_stacked([launcher.start_all_reduce(pack) for pack in packs]))
        if self.stages:
            self._start_stage(0, tensors)

    def go_on(self, stage: int, tensors: Callable[[], Sequence[tf.Tensor]]) -> None:
        """Waits for the collectives of a stage, and starts those of the next, if this has not been done.

        Args:
            stage: number of the stage, counted from 0; not the last.
            tensors: returns what `start` has taken. Called in replica context.
        """

        def following() -> tf.Operation:
            for variable, value in zip(self._results[stage], self._come_of(stage), strict=True):
                variable.assign(value)
            self._start_stage(stage + 1, tensors())
            return tf.no_op()

        tf.cond(self._stage.read() == stage, following, tf.no_op)

    def finish(self, tensors: Callable[[], Sequence[tf.Tensor]], *, bytes_at_once: int = 0) -> list[tf.Tensor]:
        """Waits for the sums and returns them; called in replica context.

        Args:
            tensors: returns what `start` has taken.
            bytes_at_once: bytes that were summed in the foreground, and are counted with the others.
        """
        for stage in range(self.stages - 1):
            self.go_on(stage, tensors)
        sums: list[Any] = list(tensors())
        totals = self._packing.unpack(self._come(self._numbers, self._packing.specs))
        for i, total in zip(self._plain, totals, strict=True):
            sums[i] = total
        sent: Any = 0.0
        if self.stages:
            streams = self._streams(self.stages - 1, [self._come_of(self.stages - 1)])
            self._path.exchange(tensors(), sums, self._taken, streams, None)
            sent = streams.sent
        ring = 2 * (self._path.replicas - 1) / self._path.replicas
        summed = bytes_at_once + sum(spec.dtype.size * spec.shape.num_elements() for spec in self._packing.specs)
        self._path.count([sums[i] for i in self._taken], sent=ring * summed + sent, sent_plain=ring * summed)
        return sums

    def _start_stage(self, stage: int, tensors: Sequence[tf.Tensor]) -> None:
        try:
            self._path.exchange(tensors, list(tensors), self._taken, self._streams(stage), None)
        except _StageStarted as started:
            self._of_stage[stage].assign(_stacked(started.operations))
        self._stage.assign(tf.constant(stage, tf.int64))

    def _come_of(self, stage: int) -> list[tf.Tensor]:
        return self._come(self._of_stage[stage], self._collectives[stage])

    def _come(self, numbers: PerReplica, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
        """Waits for collectives, for as long as the strategy lets a sum wait, and returns their results."""
        launcher = self._launcher()
        results: list[tf.Tensor] = []
        with within_deadline([], results):
            for number, spec in zip(tf.unstack(numbers.read(), len(specs)), specs, strict=True):
                results.append(launcher.finish(number, spec))
        return results

    def _streams(self, stage: int, more: Sequence[Sequence[tf.Tensor]] = ()) -> _StreamsOfStages:
        known = [[variable.read() for variable in results] for results in self._results[:stage]]
        return _StreamsOfStages([*known, *more], self._launcher(), bytes_per_pack=self._bytes_per_pack)

    def _launcher(self) -> Any:
        return self._launchers[tf.distribute.get_replica_context()._replica_id]


def collectives_of(
    compression: Compression, shapes: Sequence[tuple[int, ...]], strategy: tf.distribute.Strategy, bytes_per_pack: int
) -> list[list[tf.TensorSpec]]:
    """Returns what the collectives of an exchange result in, in the order in which they need each other.

    Args:
        compression: the compression.
        shapes: the shapes of the gradients that it takes.
        strategy: the strategy; called in its cross-replica context.
        bytes_per_pack: size of the packs.

    Raises:
        ValueError: if a shape is unknown, except in the last collective.

    Example:
        >>> import tfdist
        >>> from tfdist.allreduce import PowerSGD
        >>> from tfdist.allreduce.in_background import collectives_of
        >>> strategy = tfdist.create_strategy("mirrored", devices=2)
        >>> found = collectives_of(PowerSGD(2), [(40, 30)], strategy, 1 << 20)
        >>> [[tuple(one.shape) for one in packs] for packs in found]
        [[(80,)], [(60,)]]
    """
    state = compression.initial_state(shapes)
    found: dict[int, list[list[tf.TensorSpec]]] = {}

    def exchange() -> None:
        streams = _PlannedStreams(bytes_per_pack=bytes_per_pack)
        placeholders = CompressionState(
            of_gradients=tuple({name: _like(value) for name, value in one.items()} for one in state.of_gradients),
            shared={name: _like(value) for name, value in state.shared.items()},
            residuals=tuple(_like(value) for value in state.residuals),
        )
        compression.exchange([tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes], placeholders, streams)
        found[tf.distribute.get_replica_context()._replica_id] = streams.collectives

    # It is traced, and never called.
    tf.function(lambda: strategy.run(exchange), autograph=False).get_concrete_function()
    collectives = found[0]
    for specs in collectives[:-1]:
        for spec in specs:
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    "expected a compression of which all collectives but the last have known shapes, received "
                    f"{compression}, with the shape {spec.shape}; leave overlap out, or take another compression."
                )
    return collectives


class _PlannedStreams(Streams):
    """Remembers the collectives that are asked for, and sends nothing."""

    def __init__(self, *, bytes_per_pack: int) -> None:
        super().__init__(bytes_per_pack=bytes_per_pack)
        self.splits = False
        self.collectives: list[list[tf.TensorSpec]] = []

    def _sums(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._results([tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors])

    def _gathered(self, tensor: tf.Tensor) -> tf.Tensor:
        rows = tensor.shape[0]
        shape = [None if rows is None else rows * self._replicas, *tensor.shape[1:]]
        return self._results([tf.TensorSpec(shape, tensor.dtype)])[0]

    def _results(self, specs: list[tf.TensorSpec]) -> list[tf.Tensor]:
        self.collectives.append(specs)
        return [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]


class _StageStarted(Exception):
    """Ends an exchange whose next collectives have been started.

    Args:
        operations: the numbers of the collectives.
    """

    def __init__(self, operations: Sequence[tf.Tensor]) -> None:
        super().__init__()
        self.operations = list(operations)


class _StreamsOfStages(Streams):
    """Returns the results of the collectives that have come, and starts the next ones.

    Args:
        results: the results of the collectives so far.
        launcher: what starts collectives.
        bytes_per_pack: size of the packs.
    """

    def __init__(self, results: Sequence[Sequence[tf.Tensor]], launcher: Any, *, bytes_per_pack: int) -> None:
        super().__init__(bytes_per_pack=bytes_per_pack)
        self._come, self._launcher = iter(results), launcher

    def _sums(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._next_results(self._launcher.start_all_reduce, tensors)

    def _gathered(self, tensor: tf.Tensor) -> tf.Tensor:
        return self._next_results(self._launcher.start_all_gather, [tensor])[0]

    def _next_results(self, start: Callable[[tf.Tensor], tf.Tensor], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        results = next(self._come, None)
        if results is None:
            raise _StageStarted([start(tensor) for tensor in tensors])
        return list(results)


def _numbers(count: int, name: str) -> PerReplica:
    return PerReplica(tf.zeros([count], tf.int64), name=name)


def _stacked(numbers: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.stack(numbers) if numbers else tf.zeros([0], tf.int64)


def _like(value: Any) -> tf.Tensor:
    return tf.compat.v1.placeholder(tf.as_dtype(value.dtype), value.shape)
