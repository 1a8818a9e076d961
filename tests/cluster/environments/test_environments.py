"""ClusterConfig.detect reads the environments of schedulers right, and refuses wrong ones in one sentence."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import ClusterConfig
from tfdist.cluster.environments import ENVIRONMENTS, find
from tfdist.cluster.environments.hostlist import hosts_of
from tfdist.cluster.greeting import own_incarnation
from tfdist.cluster.meeting import Meeting

FOLDER = Path(__file__).parent
FILES = ("slurm", "others", "mpi", "lsf", "vertex")
RECORDED = [one for name in FILES for one in json.loads((FOLDER / f"{name}.json").read_text())]
WRONG = json.loads((FOLDER / "wrong.json").read_text())
ADDRESSES = [one for one in RECORDED if "workers" in one]
MEETINGS = [one for one in RECORDED if "rank" in one]
JOBS = [one for one in RECORDED if "jobs" in one]


def ids(recorded: list[dict[str, Any]]) -> list[str]:
    return [one["from"] for one in recorded]


@pytest.mark.parametrize("recorded", ADDRESSES, ids=ids(ADDRESSES))
def test_a_recorded_environment_is_read_right(recorded: dict[str, Any]) -> None:
    cluster = ClusterConfig.detect(recorded["variables"])
    assert list(cluster.jobs.get("worker", ())) == recorded["workers"]
    assert cluster.task_index == recorded["index"]
    assert cluster.num_workers == max(1, len(recorded["workers"]))


@pytest.mark.parametrize("recorded", JOBS, ids=ids(JOBS))
def test_a_recorded_environment_with_several_jobs_is_read_right(recorded: dict[str, Any]) -> None:
    cluster = ClusterConfig.detect(recorded["variables"])
    assert {job: list(addresses) for job, addresses in cluster.jobs.items()} == recorded["jobs"]
    assert cluster.task_name == recorded["task"]


@pytest.mark.parametrize("recorded", MEETINGS, ids=ids(MEETINGS))
def test_ranks_without_addresses_look_for_rank_0_where_their_launcher_says(recorded: dict[str, Any]) -> None:
    meeting, _ = find(recorded["variables"])
    assert isinstance(meeting, Meeting)
    assert (meeting.rank, meeting.size, list(meeting.hosts)) == (recorded["rank"], recorded["size"], recorded["hosts"])
    assert meeting.pmi == recorded.get("pmi")
    if "ports" in recorded:
        assert list(meeting.ports) == recorded["ports"]
    else:
        assert bool(meeting.run_id) == bool(meeting.ports) == (meeting.pmi is None)


def test_there_are_at_least_forty_environments_of_each_kind_and_each_says_where_it_is_from() -> None:
    assert len(RECORDED) >= 40 and len(WRONG) >= 40
    for recorded in (RECORDED, WRONG):
        assert len({json.dumps(one["variables"], sort_keys=True) for one in recorded}) == len(recorded)
        assert all(len(one["from"].split()) > 1 for one in recorded)


@pytest.mark.parametrize("wrong", WRONG, ids=ids(WRONG))
def test_a_wrong_environment_is_refused_in_one_sentence_that_names_the_variable(wrong: dict[str, Any]) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match=wrong["message"]) as raised:
        ClusterConfig.detect(wrong["variables"])
    assert time.monotonic() - start < 1.0
    assert "\n" not in str(raised.value)


def test_a_file_of_hosts_of_lsf_is_read(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("batch1\na1\na1\na2\n")
    job = {"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": str(tmp_path / "hosts")}
    meeting, _ = find({**job, "JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "3"})
    assert isinstance(meeting, Meeting) and meeting.hosts == ("a1", "a2", "batch1")


def recorded_from(text: str) -> dict[str, str]:
    (found,) = [one["variables"] for one in RECORDED if text in one["from"]]
    return found


SLURM = recorded_from("2(x3),1")
SAGEMAKER = recorded_from("SM_HOSTS and SM_CURRENT_HOST")
LSF = recorded_from("test of LSFEnvironment")
MPI = recorded_from("Open MPI 5.0.11")
PODS = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1", "TFDIST_PODS": "2", "TFDIST_SUBDOMAIN": "svc"}
TRAINER = recorded_from("PET_MASTER_ADDR is the first pod")
VERTEX = recorded_from("xmanager")
KUBEFLOW = recorded_from("TF_CONFIG is read first")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_forced_environment_wins(name: str) -> None:
    variables = {**SLURM, **SAGEMAKER, **LSF, **MPI, **PODS, **TRAINER, **VERTEX, **KUBEFLOW}
    assert find({**variables, "TFDIST_ENVIRONMENT": name})[1] == ENVIRONMENTS[name].title
    assert find(variables)[1] == "TF_CONFIG"
    assert find({**variables, "TFDIST_ENVIRONMENT": "none"})[1] == ""


# The oracle builds a list from its hosts, so that the parser is not compared with another parser.
names = st.from_regex(r"[a-z]{1,5}", fullmatch=True)
ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(1, 3)), min_size=1, max_size=3)


def _written(prefix: str, parts: list[tuple[int, int, int]], suffix: str) -> tuple[str, list[str]]:
    texts, hosts = [], []
    for low, more, width in parts:
        texts.append(f"{low:0{width}}-{low + more:0{width}}" if more else f"{low:0{width}}")
        hosts += [f"{prefix}{number:0{len(f'{low:0{width}}')}}{suffix}" for number in range(low, low + more + 1)]
    return f"{prefix}[{','.join(texts)}]{suffix}", hosts


@settings(deadline=None)
@given(st.lists(st.tuples(names, ranges, st.sampled_from(["", "-ib", "x"])), min_size=1, max_size=4))
def test_host_lists_expand_to_their_hosts_in_order(items: list[tuple[str, list[tuple[int, int, int]], str]]) -> None:
    written = [_written(*item) for item in items]
    assert list(hosts_of(",".join(text for text, _ in written))) == [host for _, hosts in written for host in hosts]


@settings(deadline=None)
@given(st.text(alphabet="n[]-,0123456789 x", max_size=20))
def test_any_text_is_a_host_list_or_refused(text: str) -> None:
    try:
        assert all(hosts_of(text))
    except ValueError as error:
        assert "received" in str(error)


def of_step(job: int, step: int) -> dict[str, str]:
    of_task = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "a,b"}
    return {**of_task, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step), "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}


def test_steps_of_neighbouring_slurm_jobs_have_ports_and_incarnations_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [of_step(job, step) for job in range(1_100_000_100, 1_100_000_120) for step in range(3)]
    clusters = [ClusterConfig.detect(variables) for variables in steps]
    assert len({cluster.address for cluster in clusters}) == len(steps)
    found = set()
    for variables, cluster in zip(steps, clusters, strict=True):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        found.add(own_incarnation(cluster.source))
    assert len(found) == len(steps)
    # With addresses from elsewhere, steps that srun starts one by one may be one cluster.
    assert own_incarnation("TF_CONFIG") is own_incarnation() is None
