"""Losses over the gathered rows of all replicas have the value and the gradients of one device."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.processes import launch
from tfdist.collectives import all_gather, all_reduce, barrier, broadcast

PROGRAM = """
import contextlib, json, sys
import numpy as np
from tfdist import create_strategy

strategy = create_strategy("mirrored", devices=int(sys.argv[1]))
import tensorflow as tf
from tfdist.collectives import all_gather

keras = tf.keras
keras.backend.set_floatx("float64")
rng = np.random.default_rng(0)
x, y = rng.normal(size=(53, 6)), rng.normal(size=(53, 3))


class Contrastive(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            similarities = tf.matmul(all_gather(self.dense(x)), all_gather(y), transpose_b=True)
            rows = tf.reduce_logsumexp(similarities, 1) - tf.linalg.diag_part(similarities)
            loss = tf.reduce_mean(rows)
        weights = self.dense.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def trained(scope):
    keras.utils.set_random_seed(1)
    with scope:
        model = Contrastive()
        model.compile(keras.optimizers.SGD(0.05))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    return [*losses, *np.concatenate([np.ravel(weight) for weight in model.get_weights()])]


print("RESULT", json.dumps([trained(contextlib.nullcontext()), trained(strategy.scope())]))
"""


@pytest.mark.parametrize("replicas", ["2", pytest.param("4", marks=pytest.mark.full)])
def test_a_contrastive_loss_over_gathered_rows_trains_as_on_one_device(replicas, children):
    out = children.run(PROGRAM, replicas).out
    expected, found = json.loads(out.split("RESULT ")[1].splitlines()[0])
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_a_scalar_is_refused():
    message = r"expected a tensor with rows for all_gather, received a scalar; add an axis\."
    with pytest.raises(ValueError, match=message):
        all_gather(1.0)


NUMBERS = {"float64", "float32", "float16", "bfloat16"}


def expected_in_step() -> dict[str, list]:
    """Returns the results of each of four replicas, whose numbers are 0 to 3."""

    def numbers(dtype: str, *values: int) -> list:
        return [repr(float(value)) for value in values] if dtype in NUMBERS else list(values)

    expected = {
        "sum": ["6.0", "12.0"],
        "mean": ["1.5"],
        "gathered": ["0.0", "1.0", "1.0", "2.0", "2.0", "2.0", "3.0", "3.0", "3.0", "3.0"],
        "broadcast": ["-0.0", "inf", "3.0"],
        "booleans": [True],
        "complex": ["3.0", "-3.0"],
        "sum of complex": ["6.0", "4.0", "4.0", "6.0"],
        "replicas": [4],
    }
    for dtype in (*NUMBERS, "int32", "int64"):
        expected[dtype] = numbers(dtype, 6, 12)
        expected[f"broadcast {dtype}"] = numbers(dtype, 1, 3)
    for dtype in (np.int8, np.int16):
        expected[f"broadcast {dtype.__name__}"] = [1, -1]
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        expected[f"broadcast {dtype.__name__}"] = [1, np.iinfo(dtype).max]
    return expected


EXPECTED_OUTSIDE = {
    "sum": ["3.0", "4.0"],
    "mean": ["0.5"],
    "gathered": [5, 6, 6],
    "broadcast": ["1.5", "-0.0"],
    "workers": 2,
}


def check_collectives(text: str) -> None:
    """Fails unless each of two workers with two replicas has printed what the collectives have to return."""
    found = [json.loads(line.partition("RESULT ")[2]) for line in text.splitlines() if "RESULT " in line]
    assert len(found) == 2
    for one in found:
        assert one["replicas"] == [expected_in_step()] * 2
        assert one["outside"] == EXPECTED_OUTSIDE


def test_collectives_work_in_a_step_and_outside_of_one(tmp_path):
    program = Path(__file__).with_name("collectives_program.py")
    command = ["--workers", "2", "--", sys.executable, str(program), "tensorflow"]
    ended = launch(*command, cwd=tmp_path, deadline_seconds=120.0)
    assert ended.code == 0
    check_collectives(ended.text)


@pytest.mark.parametrize("workers", [0, 1])
def test_one_worker_gets_what_it_gives(workers):
    strategy = contextlib.nullcontext() if not workers else tfdist.create_strategy("one_device").scope()
    with strategy:
        assert all_reduce([1.5, 2.0]).numpy().tolist() == [1.5, 2.0]
        assert all_gather([1, 2]).numpy().tolist() == [1, 2]
        assert broadcast(True).numpy().tolist() is True
        assert int(barrier()) == 1


def test_unknown_operations_and_roots_are_refused():
    with pytest.raises(ValueError, match=r"expected op to be 'sum' or 'mean', received 'max'\."):
        all_reduce(1.0, "max")
    with pytest.raises(ValueError, match=r"expected root to be from 0 to 0, received 1\."):
        broadcast(1.0, root=1)


@pytest.mark.parametrize("tensor", [True, "text"])
def test_what_is_no_number_has_no_sum(tensor):
    with pytest.raises(ValueError, match=r"^expected numbers for all_reduce, received (bool|string); use tf\.cast\.$"):
        all_reduce(tensor)


def test_text_is_not_broadcast():
    message = r"^expected numbers or booleans for broadcast, received text; use all_gather, and take a row\.$"
    with pytest.raises(ValueError, match=message):
        broadcast("text")


def test_gradients_flow_through_the_sum_of_complex_numbers(four_cpus):
    options = tfdist.AllReduceOptions(transport="tensorflow")
    strategy = tfdist.create_strategy("mirrored", devices=2, all_reduce=options)

    @tf.function
    def of_replica():
        own = tf.complex([1.0, 2.0], [3.0, 4.0])
        with tf.GradientTape() as tape:
            tape.watch(own)
            total = tf.reduce_sum(tf.square(tf.abs(all_reduce(own))))
        return tape.gradient(total, own)

    for found in strategy.experimental_local_results(strategy.run(of_replica)):
        # The gradients of both replicas, each of 2 * (2 * own).
        np.testing.assert_allclose(found, 8 * np.array([1 + 3j, 2 + 4j]), rtol=1e-6)


def test_a_call_outside_of_scope_is_no_call_of_all_workers(monkeypatch, caplog):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setattr(tfdist.collectives, "_said", [])
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(ValueError, match=r"^expected barrier to be called inside of strategy\.scope\(\), .* 1 other"):
        barrier()
    assert [float(all_reduce(2.0)) for _ in range(2)] == [2.0, 2.0]
    assert caplog.text.count("was called outside of strategy.scope()") == 1
    monkeypatch.delenv("TF_CONFIG")
    assert int(barrier()) == 1
