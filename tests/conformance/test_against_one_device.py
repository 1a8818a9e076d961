"""What a strategy trains, evaluates and predicts is what one device does on the same global batches.

Each strategy runs all its cases in one cluster of processes; the oracle is stock Keras in a process without tfdist.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conformance.programs_list import ONE_READER, ORDER_FREE, STEPS_IN_ONE_CALL, SYNCHRONOUS
from tests.processes import launch, run

PROGRAMS = Path(__file__).parent / "programs"
STRATEGIES = {
    # name: (launcher's arguments, strategy, devices, cases, ranks that report)
    "one_device": (["--workers", "1"], "one_device", 0, SYNCHRONOUS + STEPS_IN_ONE_CALL + ONE_READER, 1),
    "mirrored": (["--workers", "1"], "mirrored", 2, SYNCHRONOUS, 1),
    "central_storage": (["--workers", "1"], "central_storage", 2, SYNCHRONOUS, 1),
    "multi_worker_mirrored": (["--workers", "2"], "multi_worker_mirrored", 0, SYNCHRONOUS, 2),
    "parameter_server with one worker": (
        ["--workers", "1", "--ps", "1"],
        "parameter_server",
        0,
        SYNCHRONOUS + STEPS_IN_ONE_CALL + ONE_READER,
        1,
    ),
    "parameter_server with two workers": (["--workers", "2", "--ps", "1"], "parameter_server", 0, ORDER_FREE, 1),
}
CELLS = [(name, case) for name, row in STRATEGIES.items() for case in row[3]]


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("oracle")
    command = [
        sys.executable,
        str(PROGRAMS / "oracle.py"),
        str(folder / "results"),
        *SYNCHRONOUS,
        *STEPS_IN_ONE_CALL,
        *ONE_READER,
    ]
    assert run(command, cwd=folder, deadline_seconds=240).code == 0
    return json.loads((folder / "results").read_text())


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """Filled strategy by strategy as tests ask for it."""
    return {}


def results_of(name: str, results: dict, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    if name not in results:
        arguments, strategy, devices, cases, ranks = STRATEGIES[name]
        folder = tmp_path_factory.mktemp("strategy")
        program = [str(PROGRAMS / "distributed.py"), str(folder / "results"), strategy, str(devices), *cases]
        results[name] = []
        ended = launch(*arguments, "--", *program, cwd=folder, deadline_seconds=300)
        assert ended.code == 0, f"{name} ended with {ended.code}"
        results[name] = [json.loads((folder / f"results-{rank}").read_text()) for rank in range(ranks)]
    assert results[name], f"{name} gave no results"
    return results[name]


@pytest.mark.parametrize(("name", "case"), CELLS, ids=[f"{name}-{case}" for name, case in CELLS])
def test_gives_the_numbers_of_one_device(
    name: str, case: str, oracle: dict, results: dict, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for rank, own in enumerate(results_of(name, results, tmp_path_factory)):
        compare(own[case], oracle[case], where=f"{name}, worker {rank}, {case}")


def compare(own: object, expected: object, *, where: str) -> None:
    """Compares numbers to 1e-5, relative to their size or to 1; everything else exactly."""
    if isinstance(expected, dict):
        assert isinstance(own, dict) and "error" not in own, f"{where}: {own}"
        assert sorted(own) == sorted(expected), where
        for key, value in expected.items():
            compare(own[key], value, where=f"{where}, {key}")
    elif isinstance(expected, list) and expected and isinstance(expected[0], (dict, tuple)):
        assert len(own) == len(expected), where  # type: ignore[arg-type]
        for i, (one, other) in enumerate(zip(own, expected, strict=True)):  # type: ignore[call-overload]
            compare(one, other, where=f"{where}[{i}]")
    elif isinstance(expected, (list, float)) and _numeric(expected):
        np.testing.assert_allclose(_flat(own), _flat(expected), rtol=1e-5, atol=1e-5, err_msg=where)
    else:
        assert own == expected, where


def _flat(value: object) -> np.ndarray:
    if isinstance(value, list):
        return np.concatenate([_flat(item) for item in value]) if value else np.zeros(0)
    return np.array([value], dtype=float)


def _numeric(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_numeric, value))
    return isinstance(value, (int, float))


def test_the_oracle_ran_without_errors(oracle: dict) -> None:
    assert not [case for case, value in oracle.items() if isinstance(value, dict) and "error" in value]
