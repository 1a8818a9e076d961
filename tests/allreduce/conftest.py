from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Children
from tests.processes import WARM_LAUNCH

Found = dict[str, list[Any]]
PROGRAMS = {
    "mirrored": ("sums", "streams", "per_replica", "accumulation", "path", "shared_gradients", "equal_slices"),
    "multi_worker_mirrored": ("streams", "path"),
}


@pytest.fixture(autouse=True)
def _tensorflow(four_cpus, no_surroundings):
    """Every test here runs in a process whose TensorFlow has four logical CPUs, and that knows of no cluster."""


@pytest.fixture(scope="session")
def found_under(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Found]]:
    """Runs the programs of tests/allreduce/programs once for each strategy, and returns what one has found.

    A strategy has processes of its own, since strategies of one process share the instances of its collectives.
    """
    children = Children(tmp_path_factory.mktemp("children"))
    folders: dict[str, Path] = {}

    def found(strategy: str, program: str) -> Found:
        if strategy not in folders:
            folders[strategy] = tmp_path_factory.mktemp(strategy)
            launch = [*WARM_LAUNCH, "--workers", "2", "--timeout-seconds", "280"]
            command = ["-m", "tests.allreduce.programs", strategy, str(folders[strategy]), *PROGRAMS[strategy]]
            ended = children.start_command(*(launch if strategy == "multi_worker_mirrored" else ()), *command).end()
            assert ended.code == 0, ended.err
        replicas: Found = {}
        for path in sorted(folders[strategy].glob(f"{program}-*.json")):
            for key, own in json.loads(path.read_text()).items():
                replicas.setdefault(key, []).extend(own)
        return replicas

    yield found
    children.clean_up()


@pytest.fixture
def two_replicas(found_under) -> Callable[[str], Found]:
    """Returns what a program has found on each of two replicas of one process, by key."""
    return lambda program: found_under("mirrored", program)


@pytest.fixture
def two_workers(found_under) -> Callable[[str], Found]:
    """Returns what a program has found on each of two workers, by key."""
    return lambda program: found_under("multi_worker_mirrored", program)


@pytest.fixture(params=PROGRAMS)
def either(found_under, request) -> Callable[[str], Found]:
    """Returns what a program has found on each of two replicas, in one process and in two."""
    return lambda program: found_under(request.param, program)
