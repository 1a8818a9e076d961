"""`tfdist test` runs in the tasks that mpiexec and srun themselves start."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.environments import slurm_cluster
from tests.cluster.environments.mpi_launchers import KINDS, launcher, options, variables
from tests.processes import run
from tfdist.test.checks import CHECKS

pytestmark = pytest.mark.full
SECONDS = 300
COMMAND = [sys.executable, "-m", "tfdist", "test", "--json"]


def check(text: str, *, where: str) -> None:
    (line,) = [line for line in text.splitlines() if '"outcomes"' in line]
    report: dict[str, Any] = json.loads(line[line.index("{") :])
    assert [one["verdict"] for one in report["outcomes"]] == ["pass"] * len(CHECKS)
    assert report["where"] == where


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_mpiexec_pass_all_checks(kind: str, tmp_path: Path) -> None:
    path = launcher(kind)
    if path is None:
        pytest.skip(f"{kind} is not installed; see mpi_launchers.py")
    command = [path, *options(kind), "-n", "2", *COMMAND]
    ended = run(command, cwd=tmp_path, deadline_seconds=SECONDS, env=variables(path))
    assert ended.code == 0
    check(ended.text, where="2 workers of MPI")


@pytest.mark.skipif(bool(slurm_cluster.missing()), reason=f"Slurm cannot run: {slurm_cluster.missing()}")
def test_tasks_of_srun_pass_all_checks(tmp_path: Path, free_ports: Any) -> None:
    folder = tmp_path / "slurm"
    folder.mkdir()
    # On one node, because the nodes of the test share the ports of one machine.
    ended = slurm_cluster.srun(
        f"srun -N1 -n2 {' '.join(COMMAND)}",
        nodes="n[8-9]",
        names=["n8", "n9"],
        ports=[free_ports(1)[0], 17018],
        folder=folder,
        deadline_seconds=SECONDS,
    )
    assert ended.code == 0
    check(ended.text, where="2 workers of Slurm")
