"""Gives parts, and values of single replicas, to other workers, so that the memory of any host is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfdist.checkpoint.components import is_of_one_replica, name_of, replica_of, variable_of
from tfdist.workers import count_workers, saying_what_it_waits_for, sum_over_workers, worker_index

# A part is sent in pieces, so that it is not in memory several times.
_PIECE_BYTES = 1 << 24
# Variables of these kinds are small. Residuals of compression, which are as large as the model, are of other kinds.
_GATHERED = ("model/", "metrics/", "objects/")


def is_gathered(name: str) -> bool:
    """Returns whether a value belongs to one replica and is given to all workers.

    Args:
        name: name of the value.

    Example:
        >>> from tfdist.checkpoint.transfer import is_gathered
        >>> [is_gathered(name) for name in ("metrics/0/total@replica 1", "others/residual@replica 1", "model/0/kernel")]
        [True, False, False]
    """
    return is_of_one_replica(name) and name.startswith(_GATHERED)


def gather(
    strategy: tf.distribute.Strategy, numbers: Sequence[int], values: Mapping[str, np.ndarray], *, to: str
) -> tuple[list[tuple[int, ...]], dict[str, np.ndarray]]:
    """Waits for all workers, and returns the numbers of each worker and the values of all replicas.

    Args:
        strategy: strategy of the training.
        numbers: whole numbers of this worker; every worker passes as many.
        values: values of variables of this worker by name; only those that `is_gathered` accepts are sent.
        to: what the workers do, for the log line of a worker that waits.

    Returns:
        The numbers by worker, and the values of the replicas of the other workers by name.
    """
    workers, own = count_workers(strategy), worker_index(strategy)
    if workers == 1:
        return [tuple(numbers)], {}
    sent = {name: np.array(values[name], order="C") for name in sorted(values) if is_gathered(name)}
    data = b"".join(array.tobytes() for array in sent.values())
    table = np.zeros([workers, len(numbers) + -(-len(data) // 8)], "int64")
    table[own, : len(numbers)] = numbers
    table[own, len(numbers) :] = np.frombuffer(data.ljust(8 * (table.shape[1] - len(numbers)), b"\0"), "int64")
    with saying_what_it_waits_for(to):
        table = sum_over_workers(strategy, table)
    found = {}
    replicas = strategy.num_replicas_in_sync // workers
    for worker in range(workers):
        if worker == own:
            continue
        received, place = table[worker, len(numbers) :].tobytes(), 0
        for name, array in sent.items():
            number = replica_of(name) + (worker - own) * replicas
            value = np.frombuffer(received, array.dtype, count=array.size, offset=place)
            found[name_of(variable_of(name), number)] = value.reshape(array.shape)
            place += array.nbytes
    return [tuple(row) for row in table[:, : len(numbers)].tolist()], found


def broadcast(strategy: tf.distribute.Strategy, data: memoryview | None, *, source: int) -> memoryview:
    """Returns bytes of one worker on all workers.

    Args:
        strategy: strategy of the training.
        data: the bytes, on the worker that has them.
        source: index of that worker.
    """
    is_source = worker_index(strategy) == source
    given = len(data) if is_source and data is not None else 0
    with saying_what_it_waits_for(f"receive the snapshot of worker {source}"):
        size = int(sum_over_workers(strategy, np.array([given], "int64"))[0])
        received = bytearray(-(-size // 8) * 8)
        for start in range(0, size, _PIECE_BYTES):
            piece = np.zeros([min(_PIECE_BYTES, len(received) - start) // 8], "int64")
            if is_source and data is not None:
                own = bytes(data[start : start + _PIECE_BYTES])
                piece[:] = np.frombuffer(own.ljust(piece.nbytes, b"\0"), "int64")
            received[start : start + piece.nbytes] = sum_over_workers(strategy, piece).tobytes()
    return memoryview(received)[:size]
