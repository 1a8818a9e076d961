"""With real concurrency every gradient is counted once, in fit and in a loop of one's own."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import numpy as np
import pytest

from tests.averaging.event_simulation import Adam
from tests.averaging.programs.many_workers import WORKERS, X, Y
from tests.processes import run
from tfdist.keras_compat import keras_in_use


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("many")
    command = [sys.executable, "-m", "tests.averaging.programs.many_workers", str(folder / "results.json"), str(folder)]
    ended = run(command, cwd=folder, deadline_seconds=240)
    assert ended.code == 0
    return {**json.loads((folder / "results.json").read_text()), "text": ended.text, "folder": folder}


@pytest.mark.parametrize(
    ("name", "gradients", "per_update", "drop_above"),
    [("loop", 600, 1, 1), ("loop, soft_sync", 600, 2, 0), ("fit", 200, 1, None), ("fit, soft_sync", 200, 3, None)],
)
def test_every_gradient_is_counted_once(
    trained: Any, name: str, gradients: int, per_update: int, drop_above: int | None
) -> None:
    one = trained[name]
    histogram = one["histogram"]
    assert sum(histogram) == gradients
    assert one["applied"] + one["dropped"] + one["waiting"] == gradients
    assert one["dropped"] == (0 if drop_above is None else sum(histogram[drop_above + 1 :]))
    assert one["applied"] == one["updates"] * per_update
    assert one["waiting"] < per_update
    assert one["iterations"] == one["updates"]
    # The workers do run at the same time.
    assert sum(histogram[1:]) > 0


def test_fit_learns_and_tells_the_staleness_of_each_epoch(trained: Any) -> None:
    for name in ("fit", "fit, soft_sync"):
        assert trained[name]["accuracy"] > 0.9
        assert trained[name]["loss"][1] < trained[name]["loss"][0]
    lines = re.findall(
        r"epoch ([12]): staleness: 100 gradients, (\d+) applied in (\d+) updates, 0 dropped", trained["text"]
    )
    assert [epoch for epoch, _, _ in lines][:4] == ["1", "2", "1", "2"]
    assert lines[0][1:] == ("100", "100")


def test_tensorboard_has_the_staleness_of_each_epoch(trained: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(trained["folder"] / "board" / "train"), size_guidance={"tensors": 0})
    events.Reload()
    tags = events.Tags()["tensors"]
    assert {f"staleness/{tag}" for tag in ("mean", "largest", "updates", "dropped", "gradients")} <= set(tags)
    updates = [make_ndarray(event.tensor_proto) for event in events.Tensors("staleness/updates")]
    assert updates == [100.0, 100.0]


def test_soft_sync_with_all_workers_and_bound_0_is_synchronous(trained: Any) -> None:
    one = trained["synchronous"]
    assert one["histogram"] == [60] + [0] * 64
    assert one["updates"] == 20
    assert one["most_ahead"] <= 1
    assert one["finished"] == [20] * WORKERS
    # One device with the batches of three workers at once, in float64.
    w, b = (np.asarray(value) for value in one["start"])
    optimizer = Adam(0.05)
    optimizer_b = Adam(0.05)
    for step in range(20):
        rows = slice(step % 10 * 36, step % 10 * 36 + 36)
        x, y = X[rows].astype("float64"), Y[rows]
        scores = np.exp(x @ w + b)
        error = (scores / scores.sum(axis=1, keepdims=True) - np.eye(2)[y]) / 36
        w, b = optimizer.step(w, x.T @ error, 1.0), optimizer_b.step(b, error.sum(axis=0), 1.0)
    np.testing.assert_allclose(one["weights"][0], w, rtol=0, atol=1e-5)
    np.testing.assert_allclose(one["weights"][1], b, rtol=0, atol=1e-5)


def test_with_a_bound_workers_without_data_do_not_keep_the_others_waiting(trained: Any) -> None:
    assert sum(trained["uneven"]["histogram"]) == trained["uneven"]["updates"] == 2 + 6 + 10


@pytest.mark.parametrize(("name", "updates"), [("sparse", 20), ("sparse, soft_sync", 10)])
def test_sparse_gradients_update_their_rows(trained: Any, name: str, updates: int) -> None:
    assert trained[name]["updates"] == updates
    row_1, row_3 = -0.5 * 2 * updates, -0.5 * updates
    assert trained[name]["table"] == [[0.0] * 2, [row_1] * 2, [0.0] * 2, [row_3] * 2]


def test_what_a_step_cannot_honour_is_refused(trained: Any) -> None:
    outside, factor, scaling, accumulating = trained["refusals"]
    assert "expected the optimizer to be called in a function that strategy.run calls in a tf.function" in outside
    assert "expected staleness.scale to return a scalar for the scalar tau, received a tensor of shape (2,)" in factor
    # Keras 2 itself refuses loss scaling with parameter servers.
    ours = "expected an optimizer of tf.keras.optimizers without loss scaling for a strategy with staleness"
    assert (ours if keras_in_use().is_keras3 else "Loss scaling is not supported") in scaling
    # Keras 2 has no such option.
    if keras_in_use().is_keras3:
        assert "expected an optimizer without gradient_accumulation_steps for the strategy" in accumulating
