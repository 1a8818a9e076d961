"""A job of workers, one of which stops taking part: -m tests.allreduce.programs.deadline FOLDER ABSENT [short].

ABSENT is the index of the worker that stops. The first of the others writes what it has seen to FOLDER/found.json.
"short" leaves out the sums in which every worker takes part, but for one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tfdist
from tfdist import AllReduceOptions

# Far above the time between the starts of the same step in two workers, which both have traced it.
TIMEOUT_SECONDS = 3.0
FEW, MANY = 3, 40
# The worker that takes no part stays alive for longer than the timeout.
ABSENCE_SECONDS = 60.0


def main(folder: Path, absent: int, *, short: bool) -> None:
    options = AllReduceOptions(timeout_seconds=TIMEOUT_SECONDS)
    strategy = tfdist.create_strategy("multi_worker_mirrored", all_reduce=options)
    import tensorflow as tf

    from tfdist.allreduce import deadline as module
    from tfdist.allreduce.deadline import deadline_of
    from tfdist.optimizers import DistributedOptimizer
    from tfdist.workers import sum_over_workers, worker_index

    module._FIRST_REPORT_SECONDS = TIMEOUT_SECONDS / 2
    deadline = deadline_of(strategy)
    found: dict[str, Any] = {}

    def barrier() -> None:
        sum_over_workers(strategy, np.ones(1))

    def counted(name: str, step: Callable[[], Any], times: int) -> None:
        before = deadline.counts()
        for _ in range(times):
            step()
        after = deadline.counts()
        found[name] = np.subtract(after, before).tolist()

    def step_of(optimizer: Any) -> Callable[[], Any]:
        variables = [tf.Variable(tf.zeros([1000]), name=f"v{i}") for i in range(4)]
        optimizer.build(variables)

        def replica() -> None:
            optimizer.apply_gradients([(tf.ones([1000]), variable) for variable in variables])

        return tf.function(lambda: strategy.run(replica), autograph=False).get_concrete_function()

    with strategy.scope():
        # Four packs for each sum.
        all_reduce = AllReduceOptions(bytes_per_pack=4000)
        distributed = step_of(DistributedOptimizer(tf.keras.optimizers.SGD(), all_reduce=all_reduce))
        stock = step_of(tf.keras.optimizers.SGD())
    barrier()
    counted("first", distributed, 1)
    if not short:
        counted("distributed", distributed, FEW)
        counted("stock", stock, FEW)
        threads = _threads()
        counted("many", distributed, MANY)
        found["more threads"] = _threads() - threads
        time.sleep(1.5 * TIMEOUT_SECONDS)
        barrier()
        counted("after a pause", stock, FEW)
    found["error"] = ""
    begin = time.monotonic()
    if worker_index(strategy) == absent:
        time.sleep(ABSENCE_SECONDS)
    try:
        distributed()
    except tf.errors.OpError as error:
        found["error"] = f"{type(error).__name__}: {error}"
    found["seconds"] = time.monotonic() - begin
    if worker_index(strategy) != int(absent == 0):
        # The end of this worker would end the others before they have written what they have seen.
        time.sleep(ABSENCE_SECONDS)
    (folder / "found.json").write_text(json.dumps(found))
    # The launcher ends the other workers too.
    os._exit(1)


def _threads() -> int:
    """Returns the number of threads of this process, those of TensorFlow among them."""
    return len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), short="short" in sys.argv)
