"""A small training that the tests of schedulers start on several workers, and compare with one device in float64."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.processes import run

PROGRAM = r"""
import numpy as np
import tensorflow as tf
import tfdist

strategy = tfdist.create_strategy()
tf.keras.backend.set_floatx("float64")
tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3)])
    model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), "mse")
x = np.random.default_rng(0).normal(size=(64, 4))
model.fit(x, x[:, :3] ** 2, batch_size=16, epochs=3, verbose=0)
values = np.concatenate([value.ravel() for value in model.get_weights()])
assert values.dtype == np.float64
# Ranks share the output, so that each writes its line at once.
print(f"WEIGHTS {values.tolist()}\n", end="", flush=True)
"""
PLACES = r"""
from tfdist.cluster import ClusterConfig

cluster = ClusterConfig.detect(timeout_seconds=60)
line = f"TASK {cluster.task_index} {cluster.address} {cluster.source} {','.join(cluster.jobs['worker'])}\n"
print(line, end="", flush=True)
"""


def weights(text: str) -> list[list[float]]:
    """Returns the weights that processes have printed."""
    return [json.loads(found) for found in re.findall(r"WEIGHTS (\[[^]]*\])", text)]


def places(text: str) -> list[tuple[int, str, str, list[str]]]:
    """Returns index, address, source and addresses of all workers, as processes have printed them; ordered by index."""
    found = re.findall(r"TASK (\d+) (\S+) (.+?) (\S+)$", text, re.M)
    return sorted((int(index), address, source, workers.split(",")) for index, address, source, workers in found)


def check_weights(text: str, folder: Path, *, workers: int) -> None:
    """Fails unless each worker has printed the weights that one device computes.

    Args:
        text: the output of all workers.
        folder: a folder with the program in program.py.
        workers: the number of workers.
    """
    alone = run([sys.executable, "program.py"], cwd=folder, deadline_seconds=120)
    (expected,) = weights(alone.text)
    found = weights(text)
    assert len(found) == workers
    for values in found:
        assert values == pytest.approx(expected, rel=1e-10, abs=1e-12)
