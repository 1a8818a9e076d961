"""Every operation of the transport in every dtype, through TensorFlow. Prints what is wrong, and how many."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.native.done_callback_program import SECONDS, connected
from tfdist.allreduce.native.library import operations

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECEIVE = range(1, 7)
DTYPES = [
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
]
# Rank 0 has one element more than rank 1 of what is scattered.
VALUES = [np.arange(7), 10 + np.arange(7)]


def main() -> None:
    numbers = [one.number for one in connected()]
    token = tf.Variable(0)
    key = 0

    def both(kinds: tuple[int, int], dtype: tf.DType, peers: tuple[int, int] = (0, 0)) -> list[Any]:
        """Starts an operation of both ranks, and returns what each of them receives."""
        nonlocal key
        key += 1
        started = [
            operations().tfdist_start(
                value=tf.cast(VALUES[rank], dtype), key=key, token=token.handle, communicator=numbers[rank], peer=peer,
                kind=kind, group=1, ranks=2, timeout_seconds=SECONDS,
            )
            for rank, (kind, peer) in enumerate(zip(kinds, peers, strict=True))
        ]  # fmt: skip
        waited = [operations().tfdist_wait(operation=one, T=dtype) for one in started]
        return [tf.cast(one, tf.float64).numpy().tolist() for one in waited]

    total, together = (VALUES[0] + VALUES[1]).tolist(), np.concatenate(VALUES).tolist()
    wrong = checked = 0
    for dtype in DTYPES:
        for name, found, expected in (
            ("all-reduce", both((ALL_REDUCE, ALL_REDUCE), dtype), [total, total]),
            ("reduce-scatter", both((REDUCE_SCATTER, REDUCE_SCATTER), dtype), [total[:4], total[4:]]),
            ("all-gather", both((ALL_GATHER, ALL_GATHER), dtype), [together, together]),
            ("broadcast", both((BROADCAST, BROADCAST), dtype, (1, 1)), [VALUES[1].tolist()] * 2),
            ("send", both((SEND, RECEIVE), dtype, (1, 0)), [[], VALUES[0].tolist()]),
        ):
            checked += 1
            if found != expected:
                wrong += 1
                print(f"{name} of {dtype.name}: expected {expected}, received {found}")
    print(f"{checked} operations, {wrong} wrong")


if __name__ == "__main__":
    main()
