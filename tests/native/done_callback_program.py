"""Waits for thousands of sums that end later: python done_callback_program.py. Prints how many waits were right.

Two ranks of one process sum one number at a time. The second rank starts after the first rank has begun to wait, so
that the waits of the first rank end on a thread that is not TensorFlow's, after the calls of their kernels.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from tfdist.allreduce.native.communicator import Communicator, Listener
from tfdist.allreduce.native.library import operations

WAITS, CALLS = 500, 4
ALL_REDUCE = 1
SECONDS = 30.0


def connected() -> list[Communicator]:
    listeners = [Listener("127.0.0.1", shares_memory=True, run_id="canary") for _ in range(2)]
    addresses = [f"rank_{i} 127.0.0.1 {one.port} {one.machine} {one.local}" for i, one in enumerate(listeners)]
    with ThreadPoolExecutor(2) as threads:
        futures = [
            threads.submit(one.connect, i, addresses, timeout_seconds=SECONDS) for i, one in enumerate(listeners)
        ]
        return [future.result() for future in futures]


def summing(communicator: Communicator):
    token = tf.Variable(0)

    @tf.function(autograph=False)
    def sums(values: tf.Tensor) -> tf.Tensor:
        started = [
            operations().tfdist_start(
                value=value,
                key=key,
                token=token.handle,
                communicator=communicator.number,
                kind=ALL_REDUCE,
                group=1,
                ranks=2,
                timeout_seconds=SECONDS,
            )
            for key, value in enumerate(tf.unstack(values, num=WAITS))
        ]
        waited = [operations().tfdist_wait(operation=one, T=tf.float32) for one in started]
        for one in waited:
            one.set_shape([])
        return tf.stack(waited)

    return sums.get_concrete_function(tf.TensorSpec([WAITS], tf.float32))


def main() -> None:
    first, second = (summing(communicator) for communicator in connected())
    right = 0
    for call in range(CALLS):
        values = np.arange(WAITS, dtype=np.float32) + call
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(first, tf.constant(values))
            time.sleep(0.1)
            assert not waiting.done(), "the first rank has not waited for the second one"
            found = [second(tf.constant(1000 * values)), waiting.result(SECONDS)]
        right += sum(int(np.sum(sums.numpy() == 1001 * values)) for sums in found)
    print(f"{right} waits right")


if __name__ == "__main__":
    main()
