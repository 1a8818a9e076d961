"""Starts sums for a later step, and closes the communicators: python kept_results.py. Prints what it has found."""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf

from tests.native.done_callback_program import ALL_REDUCE, connected
from tests.native.memory import megabytes
from tfdist.allreduce.native.communicator import Communicator
from tfdist.allreduce.native.library import operations

CYCLES, SUMS, MEGABYTES = 6, 10, 8


def start_all(communicators: list[Communicator]) -> list[tf.Tensor]:
    value, token = tf.ones([MEGABYTES * 250_000]), tf.Variable(0)
    given = {"value": value, "token": token.handle, "kind": ALL_REDUCE, "group": 1, "ranks": 2, "keeps": 1}
    return [
        operations().tfdist_start(key=key, communicator=one.number, **given)
        for key in range(SUMS)
        for one in communicators
    ]


def wait(number: tf.Tensor) -> str:
    try:
        return str(float(np.sum(operations().tfdist_wait(operation=number, T=tf.float32))))
    except tf.errors.OpError as error:
        return error.message


def main() -> None:
    sizes = []
    for cycle in range(CYCLES):
        communicators = connected()
        numbers = start_all(communicators)
        until = time.monotonic() + 30
        while communicators[0].bytes_sent < SUMS * MEGABYTES * 1e6 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        # The last sum is on the way: the other rank does not start it.
        late = start_all(communicators[:1]) if cycle % 2 else []
        for one in communicators:
            one.close()
        sizes.append(megabytes())
        print(wait(numbers[0]), flush=True)
        if late:
            print("late:", wait(late[-1]), flush=True)
    print(f"grown by {sizes[-1] - sizes[1]:.0f} MB in {CYCLES - 2} cycles", flush=True)


if __name__ == "__main__":
    main()
