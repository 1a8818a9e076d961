from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native import build
from tests.processes import ROOT, Finished, launch

PROGRAM = Path(__file__).with_name("program.py")
DEADLINE_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a program has printed: how it ended, and one result for each worker."""

    ended: Finished
    results: list[dict]


@pytest.fixture(autouse=True, scope="session")
def _compiler() -> None:
    if build.compiler() is None:
        pytest.skip("no C++ compiler (c++ or g++, or CXX) is installed")


@pytest.fixture(scope="session")
def with_native() -> dict[str, str]:
    """Returns the environment variables of programs that can import tfdist_native."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(build.package())])}


@pytest.fixture
def train(tmp_path: Path, with_native: dict[str, str]) -> Callable[..., Trained]:
    """Runs tests/native/program.py on workers that have the native transport, and returns the result of each."""

    def run(*words: str, workers: int = 2, native: bool = True, code: int = 0) -> Trained:
        folder = tmp_path / "-".join(("results", *words, str(native)))
        folder.mkdir()
        absent = [] if native else ["absent"]
        command = ["--workers", str(workers), "--", sys.executable, str(PROGRAM), str(folder), *words, *absent]
        ended = launch(*command, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS, env=with_native if native else None)
        assert (ended.code != 0) == (code != 0)
        return Trained(ended, [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))])

    return run
