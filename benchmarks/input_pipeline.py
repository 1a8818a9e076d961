"""One input pipeline of distribute_files against the best tf.data pipeline written by hand, and the cost of a restart.

In alternating runs; prints the medians of records a second and their ratio, and how long it takes to start at the last
tenth of an epoch and read it, over reading the epoch:

    python benchmarks/input_pipeline.py
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

import tfdist
from tfdist.bench.input_workloads import WORKLOADS, Workload
from tfdist.input import InputState, distribute_files, write_tfrecords


def by_hand(work: Workload, pattern: str) -> tf.data.Dataset:
    """Interleaved, shuffled, parsed in parallel, prefetched."""
    files = tf.data.Dataset.list_files(pattern, seed=1)
    data = files.interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.shuffle(10_000, seed=1).repeat().map(work.parse, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(work.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def rate(work: Workload, batches: Iterator[Any], steps: int) -> float:
    """Records a second."""
    for _ in range(steps // 5):
        next(batches)
    begin = time.perf_counter()
    for _ in range(steps):
        next(batches)
    return steps * work.batch / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="alternating runs of each (default: 5)")
    arguments = parser.parse_args()
    strategy = tfdist.create_strategy("one_device")
    with tempfile.TemporaryDirectory() as folder:
        for name, work in WORKLOADS.items():
            write_tfrecords(work.examples(), f"{folder}/{name}/data", num_shards=work.files)
            pattern = f"{folder}/{name}/data-*"
            options = {"parse_fn": work.parse, "global_batch_size": work.batch}
            # A whole epoch, so that what happens once an epoch counts.
            epoch = work.records // work.batch
            rates: dict[str, list[float]] = {"by hand": [], "tfdist": []}
            for _ in range(arguments.runs):
                rates["by hand"].append(rate(work, iter(by_hand(work, pattern)), epoch))
                rates["tfdist"].append(rate(work, iter(distribute_files(strategy, pattern, **options)), epoch))
            medians = {kind: statistics.median(values) for kind, values in rates.items()}
            for kind, values in rates.items():
                print(f"{name}, {kind}: {medians[kind]:,.0f} records/s, of", *(f"{value:,.0f}" for value in values))
            print(f"{name}: ratio of medians {medians['tfdist'] / medians['by hand']:.3f}", flush=True)
            costs = []
            for _ in range(arguments.runs):
                seconds = {}
                for step in (0, epoch * 9 // 10):
                    begin = time.perf_counter()
                    batches = iter(distribute_files(strategy, pattern, state=InputState(step=step), **options))
                    for _ in range(epoch - step):
                        next(batches)
                    seconds[step] = time.perf_counter() - begin
                costs.append(seconds[epoch * 9 // 10] / seconds[0])
            print(f"{name}: the last tenth of an epoch over the epoch, from the start: {statistics.median(costs):.3f}")


if __name__ == "__main__":
    main()
