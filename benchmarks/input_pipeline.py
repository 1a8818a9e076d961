"""Compares distribute_files with the fastest handwritten tf.data pipeline, and measures the cost of a restart.

Runs alternate between the two pipelines. The program prints the median records per second of each pipeline, and their
ratio. Then it prints how long it takes to start at the last tenth of an epoch and read this tenth, relative to reading
the whole epoch. For this second part the data is repeated until an epoch takes about half a minute, because every start
takes a second or two and fills the shuffle buffer with 10,000 records.

    python benchmarks/input_pipeline.py
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import tfdist
from tfdist.bench.input_workloads import WORKLOADS, Workload, handwritten_pipeline
from tfdist.input import InputState, distribute_files, write_tfrecords

# How often the data is repeated to measure the cost of a restart.
REPETITIONS = {"jpeg": 30, "small": 10}


def rate(work: Workload, batches: Iterator[Any], steps: int) -> float:
    """Returns the records per second of a pipeline."""
    for _ in range(steps // 5):
        next(batches)
    begin = time.perf_counter()
    for _ in range(steps):
        next(batches)
    return steps * work.batch / (time.perf_counter() - begin)


def seconds(strategy: Any, work: Workload, pattern: str, *, share: float) -> float:
    """Returns the seconds to start a pipeline after a share of an epoch and read the rest of the epoch."""
    epoch = REPETITIONS[work.name] * work.records // work.batch
    step = int(epoch * share)
    begin = time.perf_counter()
    options = {"parse_fn": work.parse, "global_batch_size": work.batch, "state": InputState(step=step)}
    batches = iter(distribute_files(strategy, pattern, **options))
    for _ in range(epoch - step):
        next(batches)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each pipeline (default: 5)")
    parser.add_argument("--workload", action="append", choices=tuple(WORKLOADS), help="may be repeated (default: both)")
    arguments = parser.parse_args()
    strategy = tfdist.create_strategy("one_device")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.workload or WORKLOADS:
            work = WORKLOADS[name]
            write_tfrecords(work.examples(), f"{folder}/{name}/data", num_shards=work.files)
            pattern = f"{folder}/{name}/data-*"
            options = {"parse_fn": work.parse, "global_batch_size": work.batch}
            # A whole epoch, so that work done once per epoch is measured too.
            epoch = work.records // work.batch
            rates: dict[str, list[float]] = {"handwritten": [], "tfdist": []}
            for _ in range(arguments.runs):
                rates["handwritten"].append(rate(work, iter(handwritten_pipeline(work, pattern)), epoch))
                rates["tfdist"].append(rate(work, iter(distribute_files(strategy, pattern, **options)), epoch))
            medians = {kind: statistics.median(values) for kind, values in rates.items()}
            for kind, values in rates.items():
                print(f"{name}, {kind}: {medians[kind]:,.0f} records/s, runs:", *(f"{value:,.0f}" for value in values))
            print(f"{name}: ratio of medians {medians['tfdist'] / medians['handwritten']:.3f}", flush=True)
            examples = itertools.chain.from_iterable(itertools.repeat(list(work.examples()), REPETITIONS[name]))
            write_tfrecords(examples, f"{folder}/{name}-long/data", num_shards=work.files)
            costs, last, whole = [], [], []
            for _ in range(arguments.runs):
                whole.append(seconds(strategy, work, f"{folder}/{name}-long/data-*", share=0))
                last.append(seconds(strategy, work, f"{folder}/{name}-long/data-*", share=0.9))
                costs.append(last[-1] / whole[-1])
            print(
                f"{name}: {statistics.median(whole):.1f} s for an epoch, {statistics.median(last):.1f} s for its last "
                f"tenth, median of ratios {statistics.median(costs):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
