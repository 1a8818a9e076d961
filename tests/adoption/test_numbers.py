"""A program that makes its own strategy trains the model of one device under `tfdist launch --adopt`, unchanged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conformance.compare import error_of
from tests.processes import ROOT, Finished, launch, run

PROGRAM = Path(__file__).with_name("program.py")
BOUND = 1e-10
DEADLINE_SECONDS = 240.0


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Returns the result of the program without a strategy, on stock Keras."""
    folder = tmp_path_factory.mktemp("one")
    ended = run([sys.executable, str(PROGRAM), "none", str(folder)], cwd=folder, deadline_seconds=DEADLINE_SECONDS)
    assert ended.code == 0
    return json.loads((folder / "none-alone-0.json").read_text())


def adopted(name: str, folder: Path, *options: str) -> tuple[Finished, list[dict]]:
    """Runs the program on several tasks, and returns the result of each task that trains."""
    command = ["--adopt", *options, "--", sys.executable, str(PROGRAM), name, str(folder)]
    ended = launch(*command, cwd=folder, deadline_seconds=DEADLINE_SECONDS)
    assert ended.code == 0
    return ended, [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-*.json"))]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mirrored", "adopted MirroredStrategy: 2 replicas, all-reduce auto, "),
        pytest.param("one_device", "adopted OneDeviceStrategy: 1 replica, ", marks=pytest.mark.full),
        pytest.param("subclass", "adopted OwnStrategy (MirroredStrategy): 2 replicas, ", marks=pytest.mark.full),
        pytest.param("central_storage", "adopted CentralStorageStrategy: 2 replicas, ", marks=pytest.mark.full),
    ],
)
def test_a_program_of_one_process_has_the_numbers_of_one_device(name, sentence, one_device, tmp_path):
    ended, (result,) = adopted(name, tmp_path)
    assert error_of(result, one_device)[0] <= BOUND
    assert ended.text.count(sentence) == 1
    assert ended.text.count("adopted ") == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("multi_worker", "all-reduce auto, a sum waits at most 1800 s for a worker"),
        pytest.param(
            "experimental_multi_worker", "all-reduce ring, a sum waits at most 1800 s", marks=pytest.mark.full
        ),
        pytest.param("resolved_multi_worker", "all-reduce auto, a sum waits at most 120 s", marks=pytest.mark.full),
    ],
)
def test_a_program_of_two_workers_has_the_numbers_of_one_device(name, sentence, one_device, tmp_path):
    ended, results = adopted(name, tmp_path, "--workers", "2")
    assert len(results) == 2
    assert all(error_of(result, one_device)[0] <= BOUND for result in results)
    source = "TFConfigClusterResolver" if name == "resolved_multi_worker" else "TF_CONFIG"
    assert (
        f"[workers 0, 1] tfdist: adopted MultiWorkerMirroredStrategy: 2 workers ({source}), 2 replicas, {sentence}"
        in (ended.text)
    )


@pytest.mark.full
def test_a_program_with_a_parameter_server_trains(one_device, tmp_path):
    ended, (result,) = adopted("parameter_server", tmp_path, "--workers", "1", "--ps", "1")
    assert "adopted ParameterServerStrategy: 1 worker and 1 ps (TFConfigClusterResolver), " in ended.text
    # One worker computes all steps, one after the other.
    assert error_of(result["weights"], one_device["weights"])[0] <= BOUND


@pytest.mark.full
def test_a_program_that_saves_on_every_worker_saves_restores_and_goes_on(tmp_path):
    program = Path(__file__).with_name("saving_program.py")
    folder = tmp_path / "saved"
    command = ["--adopt", "--workers", "2", "--", sys.executable, str(program), str(folder)]
    ended = launch(*command, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
    assert ended.code == 0
    assert ended.text.count("SAVED 15") == 2
    assert (folder / "checkpoint" / "checkpoint").exists()


def test_a_train_step_that_divides_by_the_global_batch_needs_the_option_of_the_page(tmp_path: Path) -> None:
    assert 'tfdist.adopt(loss="global_sum")\n```' in (ROOT / "docs" / "adopt.md").read_text()
    program = str(PROGRAM.with_name("dividing_program.py"))

    def weights(*words: str) -> list[float]:
        ended = run([sys.executable, program, *words], cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
        assert ("has a loss that is a sum over rows" in ended.text) == (words == ("mirrored", "auto"))
        return json.loads(ended.text.partition("WEIGHTS ")[2].splitlines()[0])

    one = weights("none", "stock")
    assert error_of(weights("mirrored", "global_sum"), one)[0] <= BOUND
    # Once this program is right without the option, the page need not warn any more.
    assert error_of(weights("mirrored", "auto"), one)[0] > 0.01
