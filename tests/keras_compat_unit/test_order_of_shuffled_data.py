"""A dataset that is shuffled anew in each epoch gives every strategy the batches that it gives without a strategy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.processes import launch, run

PROGRAM = """
import contextlib, json, sys
import tensorflow as tf

strategy = None
if sys.argv[1] != "none":
    import tfdist

    several = sys.argv[1] in ("mirrored", "central_storage")
    strategy = tfdist.create_strategy(sys.argv[1], devices=2 if several else None)
tf.keras.utils.set_random_seed(1)
with contextlib.nullcontext() if strategy is None else strategy.scope():
    dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
    model = tf.keras.Sequential([tf.keras.layers.Input((1,)), dense])
    model.compile(tf.keras.optimizers.SGD(0.001), "mse")
numbers = tf.data.Dataset.range(16).shuffle(16, seed=1)
data = numbers.map(lambda n: (tf.reshape(tf.cast(n, tf.float32), [1]), [1.0])).batch(8)
model.fit(data, epochs=3, verbose=0)
print("RESULT", json.dumps([float(w.numpy().sum()) for w in model.weights]))
"""


def weights(folder: Path, *command: str) -> list[list[float]]:
    (folder / "program.py").write_text(PROGRAM)
    if command[0] == "launch":
        ended = launch("--workers", "2", "--", "program.py", *command[1:], cwd=folder, deadline_seconds=120)
    else:
        ended = run([sys.executable, "program.py", *command], cwd=folder, deadline_seconds=120)
    found = [line.partition("RESULT ")[2] for line in ended.text.splitlines() if "RESULT " in line]
    return [json.loads(line) for line in found]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return weights(tmp_path_factory.mktemp("none"), "none")[0]


@pytest.mark.parametrize(
    "command",
    [
        ("mirrored",),
        ("launch", "multi_worker_mirrored"),
        *(pytest.param((name,), marks=pytest.mark.full) for name in ("one_device", "central_storage")),
    ],
    ids=str,
)
def test_the_order_is_that_without_a_strategy(command: tuple[str, ...], expected: list[float], tmp_path: Path) -> None:
    found = weights(tmp_path, *command)
    assert len(found) == (2 if command[0] == "launch" else 1)
    for own in found:
        assert own == pytest.approx(expected, rel=1e-6)
