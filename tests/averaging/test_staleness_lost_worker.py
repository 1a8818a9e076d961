"""A worker that is killed while its update holds the critical section does not stop the others."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

PROGRAM = """
import json
import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
import tfdist
from tfdist.averaging import Staleness, staleness_of

STEPS = 120
tf.config.threading.set_inter_op_parallelism_threads(16)
calls = [0]


def hold(worker):
    # Runs in the coordinator, while the update has the critical section.
    calls[0] += 1
    if calls[0] == 40:
        Path("holder").write_text(f"worker {worker}.")
        deadline = time.monotonic() + 30
        while not Path("killed").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    return np.float64(1.0)


def scale(tau):
    worker = tf.distribute.coordinator.experimental_get_current_worker_index()
    return tf.ensure_shape(tf.numpy_function(hold, [worker], tf.float64), [])


strategy = tfdist.create_strategy("parameter_server", startup_timeout_seconds=60, staleness=Staleness(scale=scale))
with strategy.scope():
    optimizer = tf.keras.optimizers.SGD(1.0)
    variable = tf.keras.Variable([0.0, 0.0]) if hasattr(tf.keras, "Variable") else tf.Variable([0.0, 0.0])
    optimizer.build([variable])


@tf.function
def step():
    strategy.run(lambda: optimizer.apply_gradients([(tf.constant([-1.0, -2.0]), variable)]))


coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
for _ in range(STEPS):
    coordinator.schedule(step)
coordinator.join()
counts = staleness_of(optimizer)
Path("results.json").write_text(
    json.dumps(
        {
            "steps": STEPS,
            "gradients": counts.gradients,
            "updates": counts.updates,
            "iterations": int(np.asarray(optimizer.iterations)),
            "variable": np.asarray(variable).tolist(),
        }
    )
)
"""


def test_the_critical_section_outlives_its_holder(children: Any, free_ports: Any, tmp_path: Path) -> None:
    jobs = {"chief": 1, "worker": 3, "ps": 1}
    ports = iter(free_ports(5))
    addresses = {job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in jobs.items()}

    def start(job: str, index: int) -> Any:
        config = json.dumps({"cluster": addresses, "task": {"type": job, "index": index}})
        return children.start(PROGRAM, env={"TF_CONFIG": config})

    started = {(job, index): start(job, index) for job, count in jobs.items() for index in range(count)}
    folder = tmp_path / "children"
    wait_for(folder / "holder", seconds=90)
    found = re.fullmatch(r"worker (\d)\.", (folder / "holder").read_text())
    assert found
    index = int(found[1])
    started["worker", index].kill()
    (folder / "killed").touch()
    started["worker", index] = start("worker", index)
    assert started["chief", 0].end().code == 0
    results = json.loads((folder / "results.json").read_text())
    # TensorFlow runs the step of the lost worker again. Its first update was made and counted, or TensorFlow stopped it
    # where it was: then it is not counted, although it may have changed the variables.
    assert results["steps"] <= results["gradients"] <= results["steps"] + 1
    assert results["updates"] == results["gradients"]
    assert results["iterations"] - results["updates"] in (0, 1)
    assert results["variable"][0] - results["updates"] in (0, 1)
    assert results["variable"][1] == 2 * results["variable"][0]


def wait_for(path: Path, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text().endswith(".")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
