"""What becomes of results that nobody uses: python unused_results.py. Prints what it has found.

Worker 1 comes late to a barrier whose result is not used. Then all workers sum arrays that they do not use.
"""

from __future__ import annotations

import time

import tensorflow as tf

import tfdist
from tests.native.memory import megabytes
from tfdist.workers import worker_index

LATE_SECONDS, SUMS, MEGABYTES = 3.0, 60, 8

strategy = tfdist.create_strategy("multi_worker_mirrored", all_reduce=tfdist.AllReduceOptions(transport="native"))


@tf.function
def barrier() -> None:
    def of_replica() -> None:
        tfdist.collectives.barrier()

    strategy.run(of_replica)


@tf.function
def unused(values: tf.Tensor) -> None:
    def of_replica(values: tf.Tensor) -> None:
        tfdist.collectives.all_reduce(values)

    strategy.run(of_replica, args=(values,))


def main() -> None:
    barrier()
    if worker_index(strategy) == 1:
        time.sleep(LATE_SECONDS)
    began = time.monotonic()
    barrier()
    print(f"waited {time.monotonic() - began:.1f} s", flush=True)
    values = tf.ones([MEGABYTES * 250_000])
    for _ in range(5):
        unused(values)
    before = megabytes()
    for _ in range(SUMS):
        unused(values)
    barrier()
    print(f"grown by {megabytes() - before:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
