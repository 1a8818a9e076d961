"""Lets each replica receive tensors of its peers: within a process, through tfdist-native, or from a gather of all."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.deadline import within_deadline
from tfdist.allreduce.options_of import all_reduce_of
from tfdist.allreduce.streams import Streams, communicators_of


def gathers(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether `receive` gathers the tensors of all replicas on each of them.

    Args:
        strategy: the strategy of the replicas.
    """
    return not _is_one_process(strategy) and not communicators_of(strategy)


def receive(strategy: tf.distribute.Strategy, tensors: Sequence[Any], offsets: Sequence[int]) -> list[list[Any]]:
    """Returns the tensors of replica i + offset on each replica i; called in cross-replica context.

    Args:
        strategy: the strategy of the replicas.
        tensors: what each replica sends. Only the first axis may have another size on other replicas.
        offsets: from which other replicas each one receives, modulo the number of replicas.

    Returns:
        The tensors, in the order of `tensors`, for each offset.
    """
    if not offsets:
        return []
    if gathers(strategy):
        pick = functools.partial(_gathered, offsets=tuple(offsets))
        return strategy.extended.call_for_each_replica(pick, args=(list(tensors),))
    local = [strategy.experimental_local_results(tensor) for tensor in tensors]
    own = [list(of_replica) for of_replica in zip(*local, strict=True)]
    if _is_one_process(strategy):
        found = [[own[(i + offset) % len(own)] for offset in offsets] for i in range(len(own))]
    else:
        found = _through_native(strategy, own, offsets)
    rows = iter(found)
    return strategy.experimental_distribute_values_from_function(lambda _: next(rows))


def _is_one_process(strategy: tf.distribute.Strategy) -> bool:
    return len(strategy.extended.worker_devices) == strategy.num_replicas_in_sync


def _through_native(
    strategy: tf.distribute.Strategy, own: list[list[tf.Tensor]], offsets: Sequence[int]
) -> list[list[list[tf.Tensor]]]:
    """Returns for each replica of this process, and each offset, the tensors of the peer."""
    launchers = strategy.extended._cross_device_ops._launchers
    timeout = all_reduce_of(strategy).timeout_seconds

    def exchanged(own: list[list[tf.Tensor]], like: list[list[list[tf.Tensor]]] | None) -> list[list[list[tf.Tensor]]]:
        # All exchanges of all replicas start before any of them is waited for: outside of functions, a wait blocks.
        waits = []
        for number, (launcher, tensors) in enumerate(zip(launchers, own, strict=True)):
            rank, ranks = launcher.communicator.rank, launcher.communicator.size
            waits.append(
                [
                    [
                        launcher.exchange(
                            tensor,
                            to=(rank - offset) % ranks,
                            source=(rank + offset) % ranks,
                            like=None if like is None else like[number][turn][place],
                            timeout_seconds=timeout,
                        )
                        for place, tensor in enumerate(tensors)
                    ]
                    for turn, offset in enumerate(offsets)
                ]
            )
        return [[[wait() for wait in of_offset] for of_offset in of_replica] for of_replica in waits]

    if all(tensor.shape.is_fully_defined() for tensor in own[0]):
        return exchanged(own, None)
    # A receiver has to know how much it receives.
    sizes = exchanged([[tf.shape(tensor)[:1] for tensor in tensors] for tensors in own], None)
    like = [
        [
            [
                tf.zeros(tf.concat([size, tf.shape(tensor)[1:]], 0), tensor.dtype)
                for size, tensor in zip(of_offset, tensors, strict=True)
            ]
            for of_offset in of_replica
        ]
        for of_replica, tensors in zip(sizes, own, strict=True)
    ]
    return exchanged(own, like)


def _gathered(tensors: list[tf.Tensor], *, offsets: Sequence[int]) -> list[list[tf.Tensor]]:
    """Returns the tensors of the peers for each offset; called in replica context."""
    context = tf.distribute.get_replica_context()
    streams = Streams()
    is_ragged = not all(tensor.shape.is_fully_defined() for tensor in tensors)
    everyones: list[tf.Tensor] = []
    with within_deadline(tensors, everyones):
        sizes = [streams.all_gather(tf.shape(tensor)[:1]) for tensor in tensors] if is_ragged else []
        for place, tensor in enumerate(tensors):
            # The tensors of a gather have equal shapes.
            one = _padded(tensor, tf.reduce_max(sizes[place])) if is_ragged else tensor
            everyones.append(streams.all_gather(one[None]))
    peers = [(context.replica_id_in_sync_group + offset) % context.num_replicas_in_sync for offset in offsets]
    if is_ragged:
        return [[rows[peer][: size[peer]] for rows, size in zip(everyones, sizes, strict=True)] for peer in peers]
    return [[rows[peer] for rows in everyones] for peer in peers]


def _padded(tensor: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
    return tf.pad(tensor, [[0, longest - tf.shape(tensor)[0]], *[[0, 0]] * (tensor.shape.rank - 1)])
