"""`tfdist train` ends with an error if its loss is not finite, unless a flag says otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.processes import launch, run

# The first update makes the weights so large that the second loss is not finite.
BROKEN = ["-m", "tfdist.train", "--model=mlp", "--optimizer=sgd", "--learning_rate=1e30", "--epochs=1"]
SENTENCE = "tfdist train: expected a finite loss, received nan in a step from 1 to 10 of epoch 1; lower --learning_rate"


@pytest.mark.parametrize("goes_on", [False, pytest.param(True, marks=pytest.mark.full)], ids=["ends", "goes_on"])
def test_training_ends_with_an_error_and_without_a_checkpoint(goes_on: bool, tmp_path: Path) -> None:
    flag = ["--nostop_on_nonfinite_loss"] if goes_on else []
    command = [sys.executable, *BROKEN, f"--data_dir={tmp_path}/data", *flag]
    ended = run(command, cwd=tmp_path, deadline_seconds=120)
    assert ended.code == (0 if goes_on else 1)
    assert (SENTENCE in ended.text) != goes_on
    assert "Traceback" not in ended.text
    for name in ("checkpoint.keras", "model.keras"):
        assert (tmp_path / "tfdist-model" / name).exists() == goes_on


def test_two_workers_end_with_the_same_error_and_each_names_its_replica(tmp_path: Path) -> None:
    command = ["--workers", "2", "--", *BROKEN, f"--data_dir={tmp_path}/data"]
    ended = launch(*command, cwd=tmp_path, deadline_seconds=150)
    assert ended.code != 0
    assert SENTENCE in ended.text
    for worker in (0, 1):
        report = (
            f"[worker {worker}] tfdist: the loss of replica {worker} (worker {worker}) is not finite (nan) in step 2;"
        )
        assert ended.text.count(report) == 1
