"""Tasks that Slurm itself starts find each other, and train the model of one device."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cluster.environments import slurm_cluster
from tests.processes import run

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=f"Slurm cannot run: {slurm_cluster.missing()}"),
]
NODES = ["n8", "n9", "n10", "n11"]
PROGRAM = """
    import numpy as np
    import tensorflow as tf
    import tfdist

    strategy = tfdist.create_strategy()
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3)])
        model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    model.fit(x, x[:, :3] ** 2, batch_size=16, epochs=3, verbose=0)
    print("WEIGHTS", np.concatenate([value.ravel() for value in model.get_weights()]).tolist(), flush=True)
"""
PLACES = """
    from tfdist.cluster import ClusterConfig

    cluster = ClusterConfig.detect()
    print("TASK", cluster.task_index, cluster.address, cluster.source, ",".join(cluster.jobs["worker"]), flush=True)
"""


def started(options: str, program: str, tmp_path: Path, free_ports, *, deadline_seconds: float = 240.0) -> str:
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    folder = tmp_path / "slurm"
    folder.mkdir()
    ended = slurm_cluster.srun(
        f"srun {options} {sys.executable} {tmp_path / 'program.py'}",
        nodes="n[8-11]",
        names=NODES,
        ports=[free_ports(1)[0], 17008],
        folder=folder,
        deadline_seconds=deadline_seconds,
    )
    assert ended.code == 0
    return ended.text


@pytest.mark.parametrize("options", ["-N4 -n4", "-N4 -n7 -O", "-N3 -n5 -m cyclic", "-N2 -n4 -m block:cyclic"])
def test_every_task_has_the_place_that_slurm_gave_it(options, tmp_path, free_ports):
    text = started(f"-l {options}", PLACES, tmp_path, free_ports, deadline_seconds=60.0)
    found = re.findall(r"^\s*(\d+): TASK (\d+) (\S+) Slurm (\S+)$", text, re.M)
    workers = {lists for *_, lists in found}
    assert len(workers) == 1 and len(found) == int(re.search(r"-n(\d)", options)[1])
    for label, index, address, lists in found:
        assert label == index and lists.split(",")[int(index)] == address


def test_workers_of_srun_train_the_model_of_one_device(tmp_path, free_ports):
    # On one node, because the nodes of the test share the ports of one machine.
    text = started("-N1 -n2", PROGRAM, tmp_path, free_ports)
    assert "the cluster has 2 workers (Slurm)" in text
    alone = run([sys.executable, "program.py"], cwd=tmp_path, deadline_seconds=120)
    (expected,) = _weights(alone.text)
    both = _weights(text)
    assert len(both) == 2
    for weights in both:
        assert weights == pytest.approx(expected, rel=1e-5, abs=1e-7)


def _weights(text: str) -> list[list[float]]:
    return [json.loads(found) for found in re.findall(r"WEIGHTS (\[.*\])", text)]
