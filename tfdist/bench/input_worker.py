"""The program of each worker of `tfdist bench input`: python -m tfdist.bench.input_worker WORKLOAD SOURCE PATTERN."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.allreduce import sum_gradients
from tfdist.bench.input_workloads import WORKLOADS, Workload, handwritten_pipeline
from tfdist.input import distribute_files
from tfdist.strategies import create_strategy

_HIDDEN_UNITS = 256


def dataset_of(strategy: Any, work: Workload, source: str, pattern: str, *, training: bool) -> Any:
    """Returns the distributed dataset of tfdist, or the handwritten pipeline with tf.data's auto-sharding.

    Args:
        strategy: the strategy of the workers.
        work: the workload.
        source: "tfdist", or the name of an auto-sharding policy of tf.data.
        pattern: files of the dataset.
        training: whether to shuffle and repeat the records.
    """
    if source == "tfdist":
        return distribute_files(strategy, pattern, parse_fn=work.parse, global_batch_size=work.batch, training=training)
    data = handwritten_pipeline(work, pattern, training=training)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, source)
    return strategy.experimental_distribute_dataset(data.with_options(options))


def make_step(strategy: Any, work: Workload) -> Callable[[Any], None]:
    """Returns a function that trains a network with one hidden layer on one batch, on all replicas."""
    with strategy.scope():
        weights = [
            tf.Variable(tf.random.stateless_normal(shape, (1, 2)) / 50)
            for shape in ([work.features, _HIDDEN_UNITS], [_HIDDEN_UNITS, 10])
        ]

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(x @ weights[0]) @ weights[1]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_sum(losses) / work.batch
        sums: list[Any] = sum_gradients(tape.gradient(loss, weights))
        for weight, gradient in zip(weights, sums, strict=True):
            weight.assign_sub(0.01 * gradient)

    return tf.function(lambda batch: strategy.run(replica_step, args=batch))


def rate(work: Workload, step: Callable[[Any], None], batches: Iterator[Any]) -> float:
    """Returns the records per second that all replicas together train on."""
    for _ in range(work.steps // 3):
        step(next(batches))
    begin = time.perf_counter()
    for _ in range(work.steps):
        step(next(batches))
    return work.steps * work.batch / (time.perf_counter() - begin)


def bytes_read() -> int:
    """Returns how many bytes this process has read since its start (Linux)."""
    line = next(line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar"))
    return int(line.split()[1])


def forever(value: Any) -> Iterator[Any]:
    """Yields the same value again and again, without end."""
    while True:
        yield value


def main() -> None:
    """Measures the workload and prints the results as one line of JSON."""
    workload, source, pattern = sys.argv[1:]
    work = WORKLOADS[workload]
    strategy = create_strategy()
    step = make_step(strategy, work)
    real = iter(dataset_of(strategy, work, source, pattern, training=True))
    batch = next(real)
    result = {"real": rate(work, step, real)}

    def cached(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rows = context.get_per_replica_batch_size(work.batch)
        parsed = tf.data.TFRecordDataset(tf.io.gfile.glob(pattern)[0]).take(4 * rows).map(work.parse)
        return parsed.cache().repeat().batch(rows, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    result["cached"] = rate(work, step, iter(strategy.distribute_datasets_from_function(cached)))
    result["synthetic"] = rate(work, step, forever(batch))
    before = bytes_read()
    for _ in dataset_of(strategy, work, source, pattern, training=False):
        pass
    result["bytes"] = bytes_read() - before
    print("MEASURED", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
