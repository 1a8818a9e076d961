"""Ranks that mpiexec itself starts find each other, on one host and on several, and train the model of one device."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.namespaces import hosts
from tests.cluster.environments.mpi_launchers import KINDS, launcher, options, options_of_hosts, variables
from tests.cluster.environments.training import PLACES, PROGRAM, check_weights, places
from tests.processes import ROOT, Finished, run

pytestmark = pytest.mark.full
MPI4PY = importlib.util.find_spec("mpi4py")
HAS_HOSTS = os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("tc") is not None


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if launcher(request.param) is None:
        pytest.skip(f"{request.param} is not installed; see mpi_launchers.py")
    return request.param


def started(kind: str, *arguments: str, folder: Path, seconds: float = 60.0, program: str = PLACES) -> Finished:
    (folder / "program.py").write_text(program)
    path = launcher(kind)
    assert path is not None
    command = [path, *options(kind), *arguments, sys.executable, str(folder / "program.py")]
    return run(command, cwd=folder, deadline_seconds=seconds, env=variables(path))


def check_places(text: str, *, ranks: int) -> list[str]:
    found = places(text)
    assert [index for index, *_ in found] == list(range(ranks))
    (workers,) = {tuple(workers) for *_, workers in found}
    assert [address for _, address, _, _ in found] == list(workers)
    assert {source for _, _, source, _ in found} == {"MPI"}
    return list(workers)


@pytest.mark.parametrize("ranks", [2, 5])
def test_ranks_on_one_host_find_each_other(kind, ranks, tmp_path):
    ended = started(kind, "-n", str(ranks), folder=tmp_path)
    assert ended.code == 0
    assert all(address.startswith("127.0.0.1:") for address in check_places(ended.text, ranks=ranks))


def test_one_rank_is_a_single_process(kind, tmp_path):
    program = "from tfdist.cluster import ClusterConfig; print('JOBS', dict(ClusterConfig.detect().jobs))"
    assert "JOBS {}" in started(kind, "-n", "1", folder=tmp_path, program=program).text


def test_a_named_coordinator_is_used(kind, tmp_path, free_ports):
    address = f"localhost:{free_ports(1)[0]}"
    named = ["-x", f"TFDIST_COORDINATOR={address}"] if kind == "Open MPI" else ["-genv", "TFDIST_COORDINATOR", address]
    ended = started(kind, *named, "-n", "2", folder=tmp_path)
    assert ended.code == 0
    check_places(ended.text, ranks=2)


def test_a_rank_that_ends_earlier_than_the_others_does_not_end_them(kind, tmp_path):
    program = f"{PLACES}\nimport time\nif cluster.task_index == 0:\n    time.sleep(3)\n    print('LATE', flush=True)\n"
    ended = started(kind, "-n", "2", folder=tmp_path, program=program)
    assert ended.code == 0
    assert "LATE" in ended.text


def test_an_absent_rank_is_named(kind, tmp_path):
    program = PLACES.replace("timeout_seconds=60", "timeout_seconds=2")
    absent = "import os, sys, time\nif '1' in (os.environ.get('PMI_RANK'), os.environ.get('OMPI_COMM_WORLD_RANK')):\n"
    ended = started(kind, "-n", "3", folder=tmp_path, program=f"{absent}    time.sleep(10); sys.exit(1)\n{program}")
    assert ended.code != 0
    assert "rank 1 of 3 did not report to rank 0 in 2 s" in ended.text


def test_workers_of_mpiexec_train_the_model_of_one_device(kind, tmp_path):
    ended = started(kind, "-n", "2", folder=tmp_path, seconds=240.0, program=PROGRAM)
    assert ended.code == 0
    assert "the cluster has 2 workers (MPI)" in ended.text
    check_weights(ended.text, tmp_path, workers=2)


@pytest.mark.skipif(MPI4PY is None, reason="mpi4py is not installed")
@pytest.mark.parametrize("first", ["mpi4py", "tfdist"])
def test_mpi_works_in_the_same_program(kind, first, tmp_path):
    lines = ["from mpi4py import MPI\n", PLACES]
    program = "".join(lines if first == "mpi4py" else reversed(lines))
    path = launcher(kind)
    assert path is not None
    # mpi4py takes the library of MPI that comes first.
    surroundings = {**variables(path), "LD_LIBRARY_PATH": str(Path(path).parents[1] / "lib")}
    assert MPI4PY is not None and MPI4PY.origin is not None
    surroundings["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(MPI4PY.origin).parents[1])])
    command = [path, *options(kind), "-n", "3", sys.executable, "program.py"]
    # Ranks share the output, so that each writes its line at once.
    total = "print(f'SUM {MPI.COMM_WORLD.allreduce(cluster.task_index)}\\n', end='', flush=True)\n"
    (tmp_path / "program.py").write_text(f"{program}\n{total}")
    ended = run(command, cwd=tmp_path, deadline_seconds=60, env=surroundings)
    assert ended.code == 0
    check_places(ended.text, ranks=3)
    assert ended.text.count("SUM 3") == 3


@pytest.mark.skipif(not HAS_HOSTS, reason="needs root and iproute2")
def test_ranks_on_several_hosts_find_each_other(kind, tmp_path):
    names = ["n8", "n9", "n10"]
    (tmp_path / "program.py").write_text(PLACES)
    path = launcher(kind)
    assert path is not None
    with hosts(len(names), rate=None) as machines:
        lines = [f"{machine.address} {name}\n" for machine, name in zip(machines, names, strict=True)]
        cases = [f"{name}) space={machine.namespace};;" for machine, name in zip(machines, names, strict=True)]
        for machine in machines:
            Path("/etc/netns", machine.namespace, "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        agent = tmp_path / "agent"
        agent.write_text(
            "#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nname=$1; shift\n"
            f"case $name in {' '.join(cases)} esac\n"
            'exec ip netns exec $space unshare --uts bash -c "hostname $name; $*"\n'
        )
        agent.chmod(0o755)
        words = [path, *options_of_hosts(kind, hosts=names, agent=agent), "-n", "3"]
        line = " ".join(["hostname", names[0], ";", "exec", *words, sys.executable, str(tmp_path / "program.py")])
        command = machines[0].command(["unshare", "--uts", "bash", "-c", line])
        ended = run(command, cwd=tmp_path, deadline_seconds=60, env=variables(path))
        assert ended.code == 0
        addresses = [address.rpartition(":")[0] for address in check_places(ended.text, ranks=3)]
    assert addresses == [machine.address for machine in machines]
