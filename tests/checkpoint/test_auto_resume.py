"""A training that is killed and started again ends with the bits of one that was never interrupted.

The reference is the same program without AutoResume, so that AutoResume itself must not change a bit either.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.processes import launch, run
from tfdist.checkpoint.auto_resume import AutoResume

PROGRAM = Path(__file__).parent / "programs" / "training.py"
DEADLINE_SECONDS = 240


@pytest.fixture
def trained(tmp_path):
    """Returns a function that runs the program on one worker, or on two, and returns its result and its output."""

    def train(*options: str, workers: int = 1) -> tuple[dict | None, str]:
        data = [f"--data-directory={tmp_path / 'data'}"]
        if workers == 1:
            command = [sys.executable, str(PROGRAM), *data, *options]
            ended = run(command, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
        else:
            options = ("--strategy=multi_worker_mirrored", *data, *options)
            ended = launch(
                "--workers", str(workers), "--", str(PROGRAM), *options, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS
            )
        found = [json.loads(text) for text in re.findall(r"RESULT (.*)", ended.text)]
        assert all(one == found[0] for one in found)
        assert len(found) in ((0, workers) if ended.code == 0 else (0,))
        return (found[0] if found else None), ended.text

    return train


def check_a_killed_training(trained, directory, *options: str, kills: tuple[int, ...], workers: int = 1) -> None:
    expected, _ = trained(*options, workers=workers)
    assert expected is not None
    auto = f"--directory={directory}"
    for number, steps in enumerate(kills):
        result, text = trained(*options, auto, f"--kill-after={steps}", workers=workers)
        assert result is None
        assert ("the training begins" in text) == (number == 0)
    result, text = trained(*options, auto, workers=workers)
    assert "the training goes on from the snapshot of step" in text
    assert result == expected
    again, text = trained(*options, auto, workers=workers)
    assert "the training is finished" in text
    assert again == expected


@pytest.mark.parametrize(
    ("strategy", "data"),
    [
        ("one_device", "arrays"),
        ("mirrored", "augmented"),
        *(
            pytest.param(strategy, data, marks=pytest.mark.full)
            for strategy in ("one_device", "mirrored")
            for data in ("arrays", "dataset", "repeated", "augmented", "files")
            if (strategy, data) not in [("one_device", "arrays"), ("mirrored", "augmented")]
        ),
    ],
)
def test_a_killed_training_ends_with_the_same_bits(strategy, data, trained, tmp_path):
    options = f"--strategy={strategy}", f"--data={data}"
    check_a_killed_training(trained, tmp_path / "run", *options, kills=(11, 9))


@pytest.mark.full
@pytest.mark.parametrize("compression", ["fp16", "powersgd"])
def test_residuals_of_compression_survive(compression, trained, tmp_path):
    options = "--strategy=mirrored", f"--compression={compression}"
    check_a_killed_training(trained, tmp_path / "run", *options, kills=(11,))


@pytest.mark.full
def test_a_loss_scale_survives(trained, tmp_path):
    options = "--strategy=mirrored", "--policy=mixed_float16"
    check_a_killed_training(trained, tmp_path / "run", *options, kills=(11,))


def test_two_workers_go_on_from_the_same_snapshot(trained, tmp_path):
    trained("--strategy=one_device", "--data=files", "--epochs=0")
    options = "--compression=powersgd", "--data=files"
    check_a_killed_training(trained, tmp_path / "run", *options, kills=(11,), workers=2)


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 1])
def test_two_workers_go_on_from_the_disk(victim, trained, tmp_path):
    options = "--no-memory", f"--victim={victim}", "--compression=powersgd"
    check_a_killed_training(trained, tmp_path / "run", *options, kills=(11, 9), workers=2)


@pytest.mark.full
def test_a_finished_training_goes_on_for_more_epochs(trained, tmp_path):
    options = "--strategy=mirrored", "--data=dataset"
    expected, _ = trained(*options, "--epochs=4")
    trained(*options, f"--directory={tmp_path / 'run'}", "--epochs=2")
    result, text = trained(*options, f"--directory={tmp_path / 'run'}", "--epochs=4")
    assert "the training goes on from the snapshot of step 14 (epoch 3, step 0)" in text
    assert result == expected


def test_another_number_of_replicas_is_refused(trained, tmp_path):
    directory = f"--directory={tmp_path / 'run'}"
    trained("--strategy=mirrored", directory, "--kill-after=11")
    result, text = trained("--strategy=one_device", directory)
    assert result is None
    assert "ValueError: expected a snapshot of 1 replicas in" in text


@pytest.mark.parametrize("option", [{"every_steps": 0}, {"keep": 0}])
def test_options_without_a_meaning_are_refused(option, tmp_path):
    with pytest.raises(ValueError, match=f"expected {next(iter(option))} to be at least 1, received 0"):
        AutoResume(str(tmp_path), **option)
