"""Under Ray Train, two workers train the model of one device, and a training goes on after a worker has been killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes import Finished, run

pytest.importorskip("ray.train", reason="the extra ray is not installed")

PROGRAM = Path(__file__).parent / "programs" / "training.py"
DEADLINE_SECONDS = 240
STEPS, EPOCHS = 18, 3


@pytest.fixture
def trained(tmp_path):
    """Returns a function that runs the program in a new folder, and returns its end and the folder."""

    def train(*options: str, **config: object) -> tuple[Finished, Path]:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        command = [sys.executable, str(PROGRAM), f"--folder={folder}", f"--config={json.dumps(config)}", *options]
        return run(command, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS), folder

    return train


def results(folder: Path, *, workers: int = 2) -> list[dict]:
    return [json.loads((folder / f"worker-{i}.json").read_text()) for i in range(workers)]


def test_two_workers_train_the_model_of_one_device_with_keras_3_and_report_it(trained):
    ended, folder = trained()
    assert ended.code == 0
    own = results(folder)
    assert own[0] == own[1]
    assert own[0]["strategy"] == "CollectiveAllReduceStrategy"
    assert (own[0]["replicas"], own[0]["keras"].split(".")[0]) == (2, "3")
    ended, alone = trained(strategy="one_device")
    assert ended.code == 0
    (expected,) = results(alone, workers=1)
    for weights, reference in zip(own[0]["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(weights, reference, rtol=1e-10, atol=1e-10)

    reported = json.loads((folder / "result.json").read_text())
    assert reported["epochs"]["epoch"] == [1, 2, 3]
    for name in ("loss", "mae"):
        np.testing.assert_allclose(reported["epochs"][name], expected["history"][name], rtol=1e-10)
        assert reported["metrics"][name] == own[0]["history"][name][-1]
    assert "model.keras" in reported["files"]


@pytest.mark.parametrize("memory", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_killed_worker_is_restarted_and_the_training_ends_with_the_same_bits(memory, trained, tmp_path):
    ended, folder = trained()
    assert ended.code == 0
    expected = results(folder)[0]
    snapshots = {"snapshots": str(tmp_path / "snapshots"), "memory": memory}
    ended, folder = trained("--max-failures=1", kill_after=11, **snapshots)
    assert ended.code == 0
    for own in results(folder):
        assert own["attempt"] == 1
        # The snapshot is that of step 8, or of step 4 if the other one was being written to the disk.
        assert STEPS - 8 <= own["steps_made"] <= STEPS - 4
        assert (own["bits"], own["history"]) == (expected["bits"], expected["history"])


def test_an_exception_of_the_train_function_is_raised_with_its_own_traceback(trained):
    ended, _ = trained(raises=True)
    assert ended.code == 1
    last = ended.text[ended.text.rindex("Traceback (most recent call last)") :]
    assert "ValueError: expected good rows, received bad ones." in ended.text
    assert f'File "{PROGRAM}"' in last or f'File "{PROGRAM}"' in ended.text


@pytest.mark.full
def test_the_workers_run_tf_keras_if_the_program_asks_for_it(trained):
    pytest.importorskip("tf_keras", reason="the extra tf-keras is not installed")
    ended, folder = trained("--tf-keras")
    assert ended.code == 0
    assert [own["keras"].split(".")[0] for own in results(folder)] == ["2", "2"]
