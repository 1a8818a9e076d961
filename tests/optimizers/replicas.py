"""Runs programs with a DistributedOptimizer on two replicas, in one process or in two workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import Children
from tests.processes import WARM_LAUNCH

# These lines begin each program. Its arguments are the name of a strategy, a number of devices and a folder.
PREAMBLE = """
import json, os, sys
import numpy as np
import tfdist
from tfdist import AllReduceOptions

name, devices = sys.argv[1], int(sys.argv[2])
options = {"devices": devices} if devices else {}
strategy = tfdist.create_strategy(name, **options)
import tensorflow as tf
from tfdist.optimizers import DistributedOptimizer, gradient_traffic

rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 40)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")

def compiled(optimizer):
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((40,)), layers.Dense(64, "relu"), layers.Dense(32), layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model

def make(compression, optimizer=None, **options):
    inner = optimizer or tf.keras.optimizers.SGD(0.05, momentum=0.9)
    return compiled(DistributedOptimizer(inner, all_reduce=AllReduceOptions(compression=compression), **options))

def data(batch=16):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).with_options(options)

def say(key, value):
    print("RESULT", json.dumps({"key": key, "value": value}), flush=True)

def weights(model):
    return [np.asarray(w, "float64").ravel().tolist() for w in model.get_weights()]
"""

# The number of elements in all variables of the model of `compiled`.
ELEMENTS = 40 * 64 + 64 + 64 * 32 + 32 + 32 + 1


def on_two_replicas(children: Children, program: str, folder: Path, *, workers: int) -> list[dict[str, Any]]:
    """Runs a program and returns the values that each process has printed with `say`, by key.

    Args:
        children: fixture that starts the processes.
        program: code after PREAMBLE.
        folder: folder for the program and its files; the program gets its name.
        workers: 1 for two replicas in one process, 2 for one replica in each of two processes.
    """
    file = folder / "program.py"
    file.write_text(PREAMBLE + program)
    if workers == 1:
        ended = children.start_command(str(file), "mirrored", "2", str(folder)).end()
        logs = [ended.out]
    else:
        launch = [*WARM_LAUNCH, "--workers", "2", "--timeout-seconds", "280"]
        command = [*launch, "--log-dir", str(folder / "logs"), str(file), "multi_worker_mirrored", "0", str(folder)]
        ended = children.start_command(*command).end()
        logs = [path.read_text() for path in sorted((folder / "logs").glob("*worker*"))]
    assert ended.code == 0, ended.err
    assert len(logs) == workers
    return [_said(text) for text in logs]


def _said(text: str) -> dict[str, Any]:
    lines = [json.loads(line.partition("RESULT ")[2]) for line in text.splitlines() if "RESULT " in line]
    return {line["key"]: line["value"] for line in lines}
