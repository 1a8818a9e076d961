from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.cluster import ClusterConfig


def read(**document):
    return ClusterConfig.from_tf_config(json.dumps(document))


def task(kind, index=0):
    return {"type": kind, "index": index}


WORKERS = {"worker": ["a:1", "b:1"]}


@pytest.fixture
def environment(monkeypatch):
    def put(text):
        if text is None:
            monkeypatch.delenv("TF_CONFIG", raising=False)
        else:
            monkeypatch.setenv("TF_CONFIG", text)

    return put


# ---- the forms of TF_CONFIG that schedulers write ----


def test_the_field_environment_of_kubeflow_is_accepted():
    assert read(cluster=WORKERS, task=task("worker", 1), environment="cloud") == ClusterConfig(
        jobs=WORKERS, task_type="worker", task_index=1
    )


def test_known_fields_are_ignored_and_unknown_ones_with_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tfdist"), "propagate", True)
    known = {"environment": "cloud", "rpc_layer": "grpc", "session_master": "", "eval_session_master": "", "job": "{}"}
    assert read(cluster=WORKERS, task={**task("worker"), "trial": "1"}, **known).num_workers == 2
    assert caplog.messages == []
    assert read(cluster=WORKERS, task=task("worker"), clutser={}, zone=1).num_workers == 2
    assert caplog.messages == ["TF_CONFIG has unknown fields, which are ignored: clutser, zone."]


def test_kubeflow_dynamic_worker_lists_itself_and_the_ps():
    for index in (0, 1):
        config = read(sparseCluster={"worker": {str(index): "w:1"}, "ps": ["p:1", "q:1"]}, task=task("worker", index))
        assert config.address == "w:1"
        assert config.indices == {"worker": (index,)}
        assert [peer.name for peer in config.peers()] == ["ps 0", "ps 1"]
        assert not config.is_chief


def test_kubeflow_dynamic_worker_lists_a_ps_alone_whatever_its_index():
    config = read(sparseCluster={"worker": {}, "ps": ["q:1"]}, task=task("ps", 3))
    assert config.address == "q:1"
    assert config.task_name == "ps 3"
    assert config.peers() == ()


def test_kubeflow_dynamic_worker_without_ps_writes_null():
    config = read(sparseCluster={"worker": {"1": "w:1"}, "ps": None}, task=task("worker", 1))
    assert config.address == "w:1"
    assert not config.has_parameter_servers


def test_kubeflow_dynamic_worker_gives_a_chief_no_cluster_and_is_refused():
    with pytest.raises(ValueError, match=r"one of the jobs in cluster \(there are none\), received 'chief'"):
        read(sparseCluster={"worker": {}, "ps": []}, task=task("chief"))


def test_a_map_of_some_indices_keeps_them():
    config = read(cluster={"worker": {"3": "w:1", "10": "x:1"}, "ps": ["p:1"]}, task=task("worker", 3))
    assert config.indices == {"worker": (3, 10)}
    assert config.address == "w:1"
    assert json.loads(config.to_tf_config())["cluster"]["worker"] == {"3": "w:1", "10": "x:1"}


def test_a_map_of_all_indices_is_read_as_a_list():
    assert read(cluster={"worker": {"1": "b:1", "0": "a:1"}}, task=task("worker", 1)) == ClusterConfig(
        jobs=WORKERS, task_type="worker", task_index=1
    )


def test_a_map_of_worker_0_beside_ps_is_read_as_a_part_of_a_cluster():
    config = read(cluster={"worker": {"0": "a:1"}, "ps": ["p:1"]}, task=task("worker", 0))
    assert config.indices == {"worker": (0,)}
    assert ClusterConfig.from_tf_config(config.to_tf_config()) == config


def test_an_evaluator_has_an_address_only_if_the_cluster_lists_it():
    outside = read(cluster=WORKERS, task=task("evaluator"))
    inside = read(cluster={**WORKERS, "evaluator": ["e:1"]}, task=task("evaluator"))
    assert (outside.address, inside.address) == (None, "e:1")
    assert outside.is_evaluator and inside.is_evaluator


@pytest.mark.parametrize("leader", ["chief", "master"])
def test_chief_and_master_keep_the_name_given(leader):
    config = read(cluster={leader: ["c:1"], **WORKERS}, task=task(leader))
    assert config.is_chief
    assert config.task_type == leader
    assert leader in json.loads(config.to_tf_config())["cluster"]


def test_ray_lists_workers_only():
    # Ray's TensorflowTrainer writes IP addresses, no chief, and no fields other than cluster and task.
    config = ClusterConfig.from_tf_config(
        '{"cluster": {"worker": ["10.0.0.4:40321", "10.0.0.5:38877"]}, "task": {"type": "worker", "index": 0}}'
    )
    assert config.is_chief
    assert config.num_workers == 2


def test_index_may_be_a_string_of_digits():
    assert read(cluster=WORKERS, task=task("worker", "1")).task_index == 1


def test_an_ipv6_address_is_accepted():
    assert read(cluster={"worker": ["[::1]:2222"]}, task=task("worker")).address == "[::1]:2222"


def test_an_empty_cluster_is_a_single_process():
    assert read(cluster={}, environment="cloud") == ClusterConfig()
    assert read(cluster={}, task=task("master")) == ClusterConfig()


# ---- the environment ----


def test_reads_the_environment(environment):
    environment(json.dumps({"cluster": WORKERS, "task": task("worker", 1)}))
    assert ClusterConfig.from_tf_config().task_index == 1
    assert ClusterConfig.detect() == ClusterConfig.from_tf_config()


@pytest.mark.parametrize(
    "text", [None, "", "  ", "{}", '{"cluster": {}}', '{"environment": "cloud"}', '{"task": {"type": "worker"}}']
)
def test_detect_finds_a_single_process(environment, text):
    environment(text)
    assert ClusterConfig.detect() == ClusterConfig()


@pytest.mark.parametrize("text", ["{", "[]", '{"cluster": []}', '{"cluster": {"worker": ["a:1"]}}'])
def test_detect_refuses_a_broken_tf_config(environment, text):
    environment(text)
    with pytest.raises(ValueError, match="expected"):
        ClusterConfig.detect()


# ---- refusals ----

BAD = [
    (
        "",
        "expected TF_CONFIG to be a JSON object with cluster and task, received nothing; set TF_CONFIG for this "
        "process, or use ClusterConfig.detect() if one process may run alone.",
    ),
    (
        '{"cluster":\n {"worker": [}',
        "expected TF_CONFIG to be a JSON object, received broken JSON at line 2, column 14 "
        "(Expecting value, near 'worker\": [}'); correct the text.",
    ),
    ("[1]", "expected TF_CONFIG to be a JSON object, received a list [1]; write {...} with cluster and task."),
    ("true", "expected TF_CONFIG to be a JSON object, received the value true; write {...} with cluster and task."),
    (
        "{}",
        "TF_CONFIG: expected a field cluster, received an empty object; "
        'add it, as in {"cluster": {"worker": ["host:port", ...]}}.',
    ),
    (
        '{"task": {}}',
        "TF_CONFIG: expected a field cluster, received only task; "
        'add it, as in {"cluster": {"worker": ["host:port", ...]}}.',
    ),
    (
        '{"cluster": {"worker": ["a:1"]}}',
        "TF_CONFIG: expected a field task beside cluster, received only cluster; "
        'add it, as in {"task": {"type": "worker", "index": 0}}.',
    ),
    (
        '{"cluster": {"worker": ["a:1"]}, "task": "worker"}',
        'TF_CONFIG: expected task to be an object, received the string "worker"; write {"type": ..., "index": ...}.',
    ),
    (
        '{"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}',
        "TF_CONFIG: expected task.type, the job of this process, received only index; add it.",
    ),
    (
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}',
        "TF_CONFIG: expected task.index, its index in the job, received only type; add it.",
    ),
    (
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": 1, "index": 0}}',
        "TF_CONFIG: expected task.type to be a string, received the value 1; write the job's name.",
    ),
    (
        '{"cluster": ["a:1"], "task": {"type": "worker", "index": 0}}',
        'TF_CONFIG: expected cluster to be an object of jobs, received a list ["a:1"]; '
        'write it as {"worker": ["host:port", ...]}.',
    ),
    (
        '{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}',
        "TF_CONFIG: expected cluster.worker to be a list of addresses, received 'a:1'; write it as [\"a:1\"].",
    ),
    (
        '{"cluster": {"worker": 7}, "task": {"type": "worker", "index": 0}}',
        'TF_CONFIG: expected cluster.worker to be a list of addresses, received 7; write it as ["host:port", ...].',
    ),
    (
        '{"cluster": {"worker": {"01": "a:1"}}, "task": {"type": "worker", "index": 1}}',
        "TF_CONFIG: expected the keys of cluster.worker to be task indices such as \"0\", received '01'; "
        "correct the key.",
    ),
    (
        '{"cluster": {"worker": {}, "chief": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
        "TF_CONFIG: expected cluster.worker to have at least one address, since this process is worker 1, "
        "received an empty list; add the address of this task.",
    ),
    (
        '{"cluster": {"worker": [{"host": "a"}]}, "task": {"type": "worker", "index": 0}}',
        "TF_CONFIG: expected cluster.worker[0] to be an address host:port, received {'host': 'a'}; "
        "write it as a string.",
    ),
    (
        '{"cluster": {"worker": ["grpc://a:1"]}, "task": {"type": "worker", "index": 0}}',
        "TF_CONFIG: expected cluster.worker[0] to be an address host:port, received 'grpc://a:1'; "
        "drop the scheme 'grpc://'.",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_broken_tf_config_is_refused(text, message):
    with pytest.raises(ValueError) as caught:
        ClusterConfig.from_tf_config(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("index", [-1, 1.0, True, "one", "-1", "", "1" * 5000, [0]])
def test_an_index_that_is_not_a_number_from_0_up_is_refused(index):
    with pytest.raises(ValueError) as caught:
        read(cluster=WORKERS, task=task("worker", index))
    assert str(caught.value) == (f"TF_CONFIG: expected task.index to be an integer of at least 0, received {index!r}.")


def test_a_missing_environment_variable_is_refused(environment):
    environment(None)
    with pytest.raises(ValueError, match="received nothing; set TF_CONFIG for this process"):
        ClusterConfig.from_tf_config()


# ---- properties ----


@st.composite
def configs(draw):
    """Valid clusters of every kind: single, workers, with a chief or master, with ps, with an evaluator, sparse."""
    hosts = st.sampled_from(["localhost", "10.0.0.1", "[::1]", "worker-0.ns.svc"])
    address = st.builds("{}:{}".format, hosts, st.integers(1, 65535))
    pool = draw(st.lists(address, min_size=12, max_size=12, unique=True))
    take = iter(pool)
    leader = draw(st.sampled_from([None, "chief", "master"]))
    sizes = {
        "worker": draw(st.integers(0 if leader else 1, 4)),
        "ps": draw(st.integers(0, 3)) if leader else 0,
        "evaluator": draw(st.integers(0, 1)),
    }
    if sizes["ps"]:
        sizes["worker"] = max(1, sizes["worker"])
    if leader:
        sizes[leader] = 1
    jobs = {job: tuple(next(take) for _ in range(size)) for job, size in sizes.items() if size}
    jobs = {job: jobs[job] for job in draw(st.permutations(list(jobs)))}
    indices = {}
    for job in ("worker", "ps"):
        if job in jobs and draw(st.booleans()):
            size = len(jobs[job])
            indices[job] = tuple(draw(st.lists(st.integers(0, 99), min_size=size, max_size=size, unique=True)))
    if indices and leader and "ps" in jobs and draw(st.booleans()) and "worker" in indices:
        del jobs[leader]
    kind = draw(st.sampled_from([*jobs, "evaluator"]))
    index = 0 if kind == "evaluator" else draw(st.sampled_from(indices.get(kind) or range(len(jobs[kind]))))
    return ClusterConfig(jobs=jobs, task_type=kind, task_index=index, indices=indices)


@given(st.one_of(configs(), st.just(ClusterConfig())))
def test_every_cluster_reads_as_it_was_written(config):
    again = ClusterConfig.from_tf_config(config.to_tf_config())
    assert again == config
    assert hash(again) == hash(config)
    assert list(again.jobs) == list(config.jobs)


@given(configs())
def test_a_task_and_its_peers_make_up_the_cluster_without_its_evaluator(config):
    others = [peer.address for peer in config.peers()]
    training = [address for job, addresses in config.jobs.items() if job != "evaluator" for address in addresses]
    if not config.is_evaluator:
        assert sorted([*others, config.address]) == sorted(training)
    assert len(set(others)) == len(others)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["cluster", "sparseCluster", "task", "type", "index", "worker", "ps", "0", "x"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused_with_a_value_error(document):
    try:
        ClusterConfig.from_tf_config(json.dumps(document))
    except ValueError as error:
        assert "expected" in str(error) and "received" in str(error)
