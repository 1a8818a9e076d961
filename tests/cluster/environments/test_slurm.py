"""Tasks that Slurm itself starts find each other, and train the model of one device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.environments import slurm_cluster
from tests.cluster.environments.training import PLACES, PROGRAM, check_weights
from tfdist.cluster.environments.hostlist import hosts_of

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=f"Slurm cannot run: {slurm_cluster.missing()}"),
]
NODES = ["n8", "n9", "n10", "n11"]


def started(options: str, program: str, tmp_path: Path, free_ports, *, deadline_seconds: float = 240.0) -> str:
    (tmp_path / "program.py").write_text(program)
    folder = tmp_path / "slurm"
    folder.mkdir()
    ended = slurm_cluster.srun(
        f"srun {options} {sys.executable} {tmp_path / 'program.py'}",
        nodes="n[8-11]",
        names=NODES,
        ports=[free_ports(1)[0], 17008],
        folder=folder,
        deadline_seconds=deadline_seconds,
    )
    assert ended.code == 0
    return ended.text


@pytest.mark.parametrize("options", ["-N4 -n4", "-N4 -n7 -O", "-N3 -n5 -m cyclic", "-N2 -n4 -m block:cyclic"])
def test_every_task_has_the_place_that_slurm_gave_it(options, tmp_path, free_ports):
    text = started(f"-l {options}", PLACES, tmp_path, free_ports, deadline_seconds=60.0)
    found = re.findall(r"^\s*(\d+): TASK (\d+) (\S+) Slurm (\S+)$", text, re.M)
    workers = {lists for *_, lists in found}
    assert len(workers) == 1 and len(found) == int(re.search(r"-n(\d)", options)[1])
    for label, index, address, lists in found:
        assert label == index and lists.split(",")[int(index)] == address


def test_workers_of_srun_train_the_model_of_one_device(tmp_path, free_ports):
    # On one node, because the nodes of the test share the ports of one machine.
    text = started("-N1 -n2", PROGRAM, tmp_path, free_ports)
    assert "the cluster has 2 workers (Slurm)" in text
    check_weights(text, tmp_path, workers=2)


# A list may have several parts, and several brackets in a name.
brackets = st.lists(
    st.tuples(st.integers(0, 1200), st.integers(0, 15), st.integers(1, 4)).map(
        lambda part: f"{part[0]:0{part[2]}}-{part[0] + part[1]:0{part[2]}}" if part[1] else f"{part[0]:0{part[2]}}"
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: f"[{','.join(parts)}]")
literals = st.from_regex(r"[a-z]([a-z0-9.-]{0,4}[a-z])?", fullmatch=True)
# scontrol of Slurm 22.05 refuses a text after the last bracket, as in n[1-3]-ib; test_environments.py has such names.
in_brackets = st.lists(st.tuples(literals, brackets).map("".join), min_size=1, max_size=2).map("".join)
plain = st.from_regex(r"[a-z][a-z0-9.-]{0,6}", fullmatch=True)
names = st.one_of(in_brackets, plain)


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory) -> dict[str, str]:
    """scontrol needs a configuration, but no daemon."""
    conf = tmp_path_factory.mktemp("scontrol") / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    return {**os.environ, "SLURM_CONF": str(conf)}


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(names, min_size=1, max_size=4).map(",".join))
def test_host_lists_expand_as_scontrol_expands_them(slurm_conf, text):
    shown = subprocess.run(
        ["scontrol", "show", "hostnames", text], env=slurm_conf, capture_output=True, text=True, timeout=20, check=True
    )
    assert list(hosts_of(text)) == shown.stdout.split()
