"""ClusterConfig.detect reads the environments of schedulers right, and refuses wrong ones in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import ClusterConfig
from tfdist.cluster.environments import ENVIRONMENTS, find
from tfdist.cluster.environments.hostlist import hosts_of

FOLDER = Path(__file__).parent
RECORDED = [one for name in ("slurm.json", "others.json") for one in json.loads((FOLDER / name).read_text())]


@pytest.mark.parametrize("recorded", RECORDED, ids=[one["from"] for one in RECORDED])
def test_a_recorded_environment_is_read_right(recorded: dict[str, Any]) -> None:
    cluster = ClusterConfig.detect(recorded["variables"])
    assert list(cluster.jobs.get("worker", ())) == recorded["workers"]
    assert cluster.task_index == recorded["index"]
    assert cluster.num_workers == max(1, len(recorded["workers"]))


SLURM = RECORDED[2]["variables"]
SAGEMAKER = RECORDED[8]["variables"]
PODS = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1", "TFDIST_PODS": "2", "TFDIST_SUBDOMAIN": "svc"}
VERTEX_TASK = {"type": "workerpool1", "index": 1}
VERTEX = {
    "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
    "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
}


def spec(cluster: Any, task: Any = VERTEX_TASK, **others: Any) -> dict[str, str]:
    return {"CLUSTER_SPEC": json.dumps({"cluster": cluster, "task": task, "environment": "cloud", **others})}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "many"}, "SLURM_STEP_NUM_TASKS to be a whole number, received 'many'"),
        ({**SLURM, "SLURM_PROCID": "7"}, "SLURM_PROCID to be below 7, received 7"),
        (
            {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"},
            "7 tasks on 4 nodes, received '2\\(x2\\),1', which are 5 t",
        ),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "two"}, r"such as 2\(x3\),1, received 'two'"),
        ({**SLURM, "SLURM_STEP_NODELIST": "a[1-"}, "SLURM_STEP_NODELIST: expected names such as"),
        ({**SLURM, "SLURM_STEP_NODELIST": "a[4-1]"}, "SLURM_STEP_NODELIST: expected ranges such as"),
        ({**SLURM, "SLURM_STEP_NODELIST": "a[1-999999]"}, "SLURM_STEP_NODELIST: expected at most 65536 hosts"),
        ({**SLURM, "SLURM_STEP_NODELIST": "a,,b"}, "expected hosts between the commas"),
        ({**SLURM, "SLURM_NODEID": "1"}, "expected SLURM_NODEID=3 for the task 6 of this step, received 1"),
        ({**SLURM, "SLURM_LOCALID": "1"}, "expected SLURM_LOCALID=0 for the task 6 of this step, received 1"),
        ({**SLURM, "SLURM_DISTRIBUTION": "plane"}, "SLURM_DISTRIBUTION to be block or cyclic, received 'plane'"),
        ({**SLURM, "SLURM_HET_SIZE": "2"}, "expected a job of one component, received SLURM_HET_SIZE=2"),
        ({**SLURM, "SLURM_STEP_ID": "first"}, "SLURM_STEP_ID to be a whole number"),
        ({**SLURM, "SLURM_STEP_NODELIST": ""}, "expected the environment variable SLURM_STEP_NODELIST or SLURM_JOB_"),
        ({**SAGEMAKER, "SM_HOSTS": "algo-1,algo-2"}, "SM_HOSTS to be JSON such as"),
        ({**SAGEMAKER, "SM_HOSTS": '{"algo-1": 1}'}, "SM_HOSTS to be JSON such as"),
        ({**SAGEMAKER, "SM_HOSTS": '["algo-1", "algo-1"]'}, "expected different names of hosts in SM_HOSTS"),
        ({**SAGEMAKER, "SM_HOSTS": "[]"}, "expected different names of hosts in SM_HOSTS"),
        ({**SAGEMAKER, "SM_HOSTS": "[1, 2]"}, "expected different names of hosts in SM_HOSTS"),
        ({**SAGEMAKER, "SM_CURRENT_HOST": "algo-3"}, "SM_CURRENT_HOST to be one of SM_HOSTS \\(algo-1, algo-2\\)"),
        ({"SM_HOSTS": '["algo-1"]'}, "expected the environment variable SM_CURRENT_HOST, received none"),
        ({"SM_CURRENT_HOST": "algo-1"}, "expected the environment variable SM_HOSTS, received none"),
        ({**PODS, "TFDIST_PODS": "0x2"}, "TFDIST_PODS to be a whole number"),
        ({**PODS, "JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETION_INDEX to be below 2, received 2"),
        ({**PODS, "TFDIST_SUBDOMAIN": ""}, "expected the environment variable TFDIST_SUBDOMAIN"),
        ({**PODS, "TFDIST_SUBDOMAIN": "a b"}, "TFDIST_SUBDOMAIN to be the name of a headless service, received 'a b'"),
        ({**PODS, "HOSTNAME": "train-0"}, "HOSTNAME to end with -1, the index of this pod, received 'train-0'"),
        ({**PODS, "HOSTNAME": ""}, "expected the environment variable HOSTNAME"),
        ({"CLUSTER_SPEC": "workerpool0"}, "CLUSTER_SPEC to be JSON such as"),
        ({"CLUSTER_SPEC": "{}"}, "CLUSTER_SPEC: expected a field cluster"),
        (
            spec({**VERTEX, "workerpool4": ["a:1"]}),
            "CLUSTER_SPEC: expected the worker pools workerpool0, .* workerpool4",
        ),
        (spec(VERTEX, {"type": "workerpool1", "index": 2}), "Vertex AI: expected task.index to be an index of"),
        (spec(VERTEX, {"type": "workerpool1"}), "CLUSTER_SPEC: expected task.index"),
        (spec({**VERTEX, "workerpool1": "a:1"}), "CLUSTER_SPEC: expected cluster.workerpool1 to be a list"),
        (spec({**VERTEX, "workerpool1": ["a"]}, {"type": "workerpool0", "index": 0}), "Vertex AI: .*cluster.worker"),
        ({"TFDIST_ENVIRONMENT": "pbs"}, "expected TFDIST_ENVIRONMENT to be one of tf_config, .* received 'pbs'"),
        ({"TFDIST_ENVIRONMENT": "slurm"}, "expected the environment variable SLURM_STEP_NUM_TASKS or SLURM_NTASKS"),
        ({"TFDIST_ENVIRONMENT": "sagemaker"}, "expected the environment variable SM_HOSTS"),
        ({"TFDIST_ENVIRONMENT": "vertex"}, "expected the environment variable CLUSTER_SPEC"),
        ({"TFDIST_ENVIRONMENT": "kubernetes"}, "expected the environment variable TFDIST_PODS"),
        ({"TFDIST_ENVIRONMENT": "tf_config"}, "expected TF_CONFIG to be a JSON object with cluster and task"),
        ({"TF_CONFIG": '{"cluster": 3}'}, "TF_CONFIG: expected a field task beside cluster"),
    ],
)
def test_a_wrong_environment_is_refused_in_one_sentence_that_names_the_variable(
    variables: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        ClusterConfig.detect(variables)
    assert "\n" not in str(raised.value)


def test_vertex_pools_become_jobs() -> None:
    cluster = ClusterConfig.detect(spec(VERTEX, {**VERTEX_TASK, "trial": "1"}, job="{}"))
    assert dict(cluster.jobs) == {"chief": tuple(VERTEX["workerpool0"]), "worker": tuple(VERTEX["workerpool1"])}
    assert (cluster.task_name, cluster.num_workers, cluster.source) == ("worker 1", 3, "Vertex AI")
    alone = spec({"workerpool0": VERTEX["workerpool0"]}, {"type": "workerpool0", "index": 0})
    assert ClusterConfig.detect(alone) == ClusterConfig()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_forced_environment_wins(name: str) -> None:
    variables = {**SLURM, **SAGEMAKER, **PODS, **spec(VERTEX), "TF_CONFIG": RECORDED[-1]["variables"]["TF_CONFIG"]}
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
