"""Workers whose pipelines deliver different numbers of batches, or nothing, on two workers."""

from __future__ import annotations

import re
from pathlib import Path

from tests.processes import launch

PROGRAM = """
import os, sys, time
import numpy as np
from tfdist import AllReduceOptions, create_strategy

timeout, sleep_at, *counts = map(int, sys.argv[1:])
strategy = create_strategy("multi_worker_mirrored", all_reduce=AllReduceOptions(timeout_seconds=timeout))
import tensorflow as tf
from tfdist.workers import worker_index

worker = worker_index(strategy)


def rows():
    for i in range(counts[worker]):
        if i == sleep_at and worker == 1:
            time.sleep(100)
        # The worker with more rows is slower, so that the other worker waits for it at every step.
        time.sleep(0.01 * worker)
        yield np.ones([4], "float32"), np.ones([1], "float32")


signature = (tf.TensorSpec([4]), tf.TensorSpec([1]))
data = strategy.distribute_datasets_from_function(
    lambda context: tf.data.Dataset.from_generator(rows, output_signature=signature).batch(1)
)
keras = tf.keras
with strategy.scope():
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
# Keras 2 refuses distributed data without the number of steps.
steps = None if hasattr(keras, "ops") else max(counts)
model.fit(data, steps_per_epoch=steps, verbose=0)
print(f"worker {worker}: {int(model.optimizer.iterations.numpy())} steps", flush=True)
"""


def test_an_epoch_ends_when_the_last_worker_has_no_data(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = ["--workers", "2", "--", "program.py", "60", "-1", "4", "11"]
    ended = launch(*arguments, cwd=tmp_path, deadline_seconds=120)
    assert ended.code == 0
    assert sorted(re.findall(r"worker \d: \d+ steps", ended.text)) == ["worker 0: 11 steps", "worker 1: 11 steps"]


def test_a_pipeline_that_delivers_nothing_ends_the_other_worker_with_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = ["--workers", "2", "--", "program.py", "5", "3", "8", "8"]
    ended = launch(*arguments, cwd=tmp_path, deadline_seconds=90)
    assert ended.code not in (0, 124)
    assert (
        "expected every worker to be ready for its next batch within 5 s, waited for worker 1; find out in its log"
        in ended.text
    )
