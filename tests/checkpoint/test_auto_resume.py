"""A training that is killed and started again ends with the bits of one that was never interrupted.

The reference is the same program without AutoResume, so that AutoResume itself must not change a bit either.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.native import build as native
from tests.processes import ROOT, VARIABLES, Finished, launch, run
from tfdist.checkpoint.auto_resume import AutoResume

PROGRAM = Path(__file__).parent / "programs" / "training.py"
DEADLINE_SECONDS = 240


@pytest.fixture
def ended(tmp_path):
    """Returns a function that runs the program, in a cluster if it has workers, and returns its end."""

    def run_program(*options: str, workers: int = 0) -> Finished:
        data = [f"--data-directory={tmp_path / 'data'}"]
        if not workers:
            command = [sys.executable, str(PROGRAM), *data, *options]
            return run(command, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
        options = ("--strategy=multi_worker_mirrored", *data, *options)
        return launch(
            "--workers", str(workers), "--", str(PROGRAM), *options, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS
        )

    return run_program


@pytest.fixture
def trained(ended):
    """Returns a function that runs the program, and returns its result and its output."""

    def train(*options: str, workers: int = 0) -> tuple[dict | None, str]:
        end = ended(*options, workers=workers)
        found = [json.loads(text) for text in re.findall(r"RESULT (.*)", end.text)]
        if "--overlap" in options:
            # The slots of replicas differ between workers.
            found = [{str(number): one for number, one in enumerate(sorted(found, key=json.dumps))}] * len(found)
        assert all(one == found[0] for one in found)
        assert len(found) in ((0, max(1, workers)) if end.code == 0 else (0,))
        return (found[0] if found else None), end.text

    return train


def check_a_killed_training(trained, directory, *options: str, kills: tuple[int, ...], workers: int = 0) -> None:
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
        ("mirrored", "augmented"),
        *(
            pytest.param(strategy, data, marks=pytest.mark.full)
            for strategy in ("one_device", "mirrored")
            for data in ("arrays", "dataset", "repeated", "augmented", "files")
            if (strategy, data) != ("mirrored", "augmented")
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
@pytest.mark.parametrize(
    "outer", ["average", "block_momentum", "nesterov", "elastic", "late average", "DPSGD", "ChocoSGD"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_own_values_of_replicas_survive(workers, outer, trained, tmp_path, monkeypatch):
    is_late, outer = outer.startswith("late"), outer.removeprefix("late ")
    if is_late and workers:
        if native.compiler() is None:
            pytest.skip("no C++ compiler (c++ or g++, or CXX) is installed")
        monkeypatch.setitem(VARIABLES, "PYTHONPATH", os.pathsep.join([str(ROOT), str(native.package())]))
    # The kill and the snapshot are between meetings, which are after the steps 5, 10, and so on.
    options = () if workers else ("--strategy=mirrored",)
    options = (*options, "--local-steps=5", f"--outer={outer}", "--data=repeated", *(["--overlap"] * is_late))
    check_a_killed_training(trained, tmp_path / "run", *options, kills=(11,), workers=workers)


@pytest.mark.full
@pytest.mark.parametrize("outer", ["average", "elastic"])
def test_own_values_and_residuals_of_compressed_meetings_survive(outer, trained, tmp_path):
    options = "--strategy=mirrored", "--local-steps=5", f"--outer={outer}", "--compression=powersgd", "--data=repeated"
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
    assert "the training goes on from the snapshot of step 14 (the end of epoch 2)" in text
    assert result == expected


def check_a_preempted_training(trained, ended, directory, *options: str, during: str, after: int, workers: int) -> None:
    expected, _ = trained(*options, workers=workers)
    auto = f"--directory={directory}"
    end = ended(*options, auto, f"--terminate-after={after}", f"--during={during}", workers=workers)
    assert end.code == 75
    written = set(re.findall(r"the training is interrupted: the snapshot of step (\d+) is in", end.text))
    result, text = trained(*options, auto, workers=workers)
    if during == "trace":
        # The signal is named beforehand, or here if it came while nothing could be written.
        assert re.search("the training is interrupted: (received SIGTERM, and )?no step is lost", end.text)
        assert "no snapshot in" in text
    else:
        assert set(re.findall(r"the training goes on from the snapshot of step (\d+) ", text)) == written
    assert result == expected


@pytest.mark.parametrize(
    ("during", "after"),
    [
        pytest.param(*case, marks=pytest.mark.full)
        for case in [("test", 3), ("train", 9), ("train begin", 8), ("epoch end", 2), ("trace", 1)]
    ],
)
def test_a_signal_loses_no_step(during, after, trained, ended, tmp_path):
    options = ("--strategy=mirrored", "--data=arrays")
    check_a_preempted_training(trained, ended, tmp_path / "run", *options, during=during, after=after, workers=0)


@pytest.mark.parametrize(
    ("during", "after", "victim"),
    [
        ("test", 3, 1),
        *(pytest.param("train", after, after % 2, marks=pytest.mark.full) for after in (2, 9)),
        pytest.param("trace", 1, 1, marks=pytest.mark.full),
        pytest.param("epoch end", 2, 0, marks=pytest.mark.full),
    ],
)
def test_all_workers_leave_after_the_same_step(during, after, victim, trained, ended, tmp_path):
    options = (f"--victim={victim}",)
    check_a_preempted_training(trained, ended, tmp_path / "run", *options, during=during, after=after, workers=2)


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 1])
def test_all_workers_leave_an_evaluation_after_the_training(victim, trained, ended, tmp_path):
    expected, _ = trained(workers=2)
    auto = f"--directory={tmp_path / 'run'}"
    end = ended(auto, f"--victim={victim}", "--terminate-after=1", "--during=evaluate", workers=2)
    assert end.code == 75
    logs = [max(tmp_path.rglob(f"worker-{worker}*.log")).read_text() for worker in range(2)]
    assert "the training is interrupted: received SIGTERM, and no step is lost; exit code 75" in logs[victim]
    assert "received the signal of another worker" in logs[1 - victim]
    assert "no step is lost; exit code 75" in logs[1 - victim]
    result, text = trained(auto, workers=2)
    assert "the training is finished" in text
    assert result == expected


@pytest.mark.full
def test_other_numbers_of_workers_read_the_same_records(trained, ended, tmp_path):
    options = ("--data=files", "--without-noise")
    trained("--strategy=one_device", *options, "--epochs=0")
    expected, _ = trained("--strategy=one_device", *options)
    for workers, after in ((2, 9), (1, 8)):
        end = ended(*options, f"--directory={tmp_path / 'run'}", f"--terminate-after={after}", workers=workers)
        assert end.code == 75
    result, text = trained(*options, f"--directory={tmp_path / 'run'}", workers=2)
    assert "the snapshot is of 1 replicas, and the training goes on with 2" in text
    for name in ("losses", "norms"):
        assert result[name] == pytest.approx(expected[name], rel=0, abs=1e-5)
    assert result["epochs"] == expected["epochs"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_steps": 0}, "expected every_steps to be at least 1, received 0"),
        ({"every_seconds": 0.0}, "expected every_seconds to be more than 0, received 0.0"),
        ({"every_steps": 2, "every_seconds": 1.0}, "expected every_steps or every_seconds, received 2 and 1.0"),
        ({"overhead": 1.5}, "expected overhead to be between 0 and 1, received 1.5"),
        ({"keep": 0}, "expected keep to be at least 1, received 0"),
        ({"preemption_seconds": 0}, "expected preemption_seconds to be more than 0, received 0"),
        ({"preemption_signals": ("SIGKILL",)}, "expected the name of a signal that can be handled"),
    ],
)
def test_options_without_a_meaning_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        AutoResume(str(tmp_path), **options)


def test_the_address_of_an_object_store_is_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="expected a directory of a file system for snapshots, received 'gs://bucket"):
        AutoResume("gs://bucket/run")
    assert list(tmp_path.iterdir()) == []
