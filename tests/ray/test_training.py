"""Under Ray Train, two workers train the model of one device, and a training goes on after a worker has been killed."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes import Finished, run

pytest.importorskip("ray.train", reason="the extra ray is not installed")

PROGRAM = Path(__file__).parent / "programs" / "training.py"
DEADLINE_SECONDS = 240
STEPS = 18


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns a function that runs the program in a new folder, and returns its end and the folder."""

    def train(*options: str, legacy: bool = False, **config: object) -> tuple[Finished, Path]:
        folder = tmp_path_factory.mktemp("run")
        command = [sys.executable, str(PROGRAM), f"--folder={folder}", f"--config={json.dumps(config)}", *options]
        env = {"TF_USE_LEGACY_KERAS": "1"} if legacy else None
        return run(command, cwd=folder, deadline_seconds=DEADLINE_SECONDS, env=env), folder

    return train


@pytest.fixture(scope="module")
def uninterrupted(trained):
    """The folder of a training under Ray that nothing interrupts."""
    ended, folder = trained()
    assert ended.code == 0
    return folder


def results(folder: Path, *, workers: int = 2) -> list[dict]:
    return [json.loads((folder / f"worker-{i}.json").read_text()) for i in range(workers)]


def check_against_one_device(folder: Path, alone: Path, *, keras: str) -> None:
    own, (expected,) = results(folder), results(alone, workers=1)
    assert own[0] == own[1]
    assert (own[0]["strategy"], own[0]["replicas"]) == ("CollectiveAllReduceStrategy", 2)
    assert own[0]["keras"] == expected["keras"] == keras
    for weights, reference in zip(own[0]["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(weights, reference, rtol=1e-10, atol=1e-10)
    reported = json.loads((folder / "result.json").read_text())
    assert reported["epochs"]["epoch"] == [1, 2, 3]
    for name in ("loss", "mae"):
        np.testing.assert_allclose(reported["epochs"][name], expected["history"][name], rtol=1e-10)
        assert reported["metrics"][name] == own[0]["history"][name][-1]
    assert "model.keras" in reported["files"]


def test_two_workers_train_the_model_of_one_device_with_keras_3_and_report_it(uninterrupted, trained):
    ended, alone = trained(strategy="one_device")
    assert ended.code == 0
    check_against_one_device(uninterrupted, alone, keras="keras3")


@pytest.mark.full
@pytest.mark.parametrize("legacy", [True, False], ids=["from the environment", "by the option"])
def test_the_workers_run_tf_keras_if_the_program_asks_for_it(legacy, trained):
    pytest.importorskip("tf_keras", reason="the extra tf-keras is not installed")
    ended, folder = trained(*([] if legacy else ["--tf-keras"]), legacy=legacy)
    assert ended.code == 0
    ended, alone = trained(strategy="one_device", legacy=True)
    assert ended.code == 0
    check_against_one_device(folder, alone, keras="tf_keras")


@pytest.mark.parametrize("memory", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_killed_worker_is_restarted_and_the_training_ends_with_the_same_bits(
    memory, uninterrupted, trained, tmp_path
):
    expected = results(uninterrupted)[0]
    snapshots = {"snapshots": str(tmp_path / "snapshots"), "memory": memory}
    ended, folder = trained("--max-failures=1", kill_after=11, **snapshots)
    assert ended.code == 0
    for own in results(folder):
        assert own["attempt"] == 1
        # The snapshot is that of step 8; on the disk, that of step 4 if step 8 was being written.
        assert own["steps_made"] in ([STEPS - 8] if memory else [STEPS - 8, STEPS - 4])
        assert (own["bits"], own["history"]) == (expected["bits"], expected["history"])
    epochs = json.loads((folder / "result.json").read_text())["epochs"]["epoch"]
    assert [epoch for epoch, _ in itertools.groupby(epochs)] == [1, 2, 3]


def test_an_exception_of_the_train_function_is_raised_with_its_own_traceback(trained):
    ended, _ = trained(raises=True)
    assert ended.code == 1
    raised = ended.text[ended.text.index("raise result.error") :]
    assert f'File "{PROGRAM}"' in raised
    assert "ValueError: expected good rows, received bad ones." in raised
