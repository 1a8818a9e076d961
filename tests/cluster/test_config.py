from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from tfdist.cluster import ClusterConfig, Task


def make(jobs, task_type, task_index=0, **options):
    return ClusterConfig(jobs=jobs, task_type=task_type, task_index=task_index, **options)


WORKERS = {"worker": ["a:1", "b:1"]}
PS = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1"]}


def test_single_process():
    config = ClusterConfig()
    assert config.num_workers == 1
    assert config.is_chief
    assert not config.is_coordinator
    assert not config.is_distributed
    assert not config.is_evaluator
    assert not config.has_parameter_servers
    assert config.address is None
    assert config.peers() == ()
    assert config.task_name == "single process"


@pytest.mark.parametrize(
    ("jobs", "task_type", "task_index", "expected"),
    [
        # The expected values are num_workers, is_chief, is_coordinator and address.
        ({"worker": ["a:1"]}, "worker", 0, (1, True, False, "a:1")),
        (WORKERS, "worker", 0, (2, True, False, "a:1")),
        (WORKERS, "worker", 1, (2, False, False, "b:1")),
        ({"chief": ["c:1"]}, "chief", 0, (1, True, False, "c:1")),
        ({"chief": ["c:1"], **WORKERS}, "chief", 0, (3, True, False, "c:1")),
        ({"chief": ["c:1"], **WORKERS}, "worker", 0, (3, False, False, "a:1")),
        ({"master": ["c:1"], **WORKERS}, "master", 0, (3, True, False, "c:1")),
        ({"master": ["c:1"], **WORKERS}, "worker", 0, (3, False, False, "a:1")),
        ({**WORKERS, "evaluator": ["e:1"]}, "evaluator", 0, (2, False, False, "e:1")),
        (WORKERS, "evaluator", 0, (2, False, False, None)),
        (PS, "chief", 0, (2, True, True, "c:1")),
        ({**PS, "master": PS["chief"], "chief": []}, "master", 0, (2, True, True, "c:1")),
        (PS, "worker", 0, (2, False, False, "a:1")),
        (PS, "ps", 0, (2, False, False, "p:1")),
        (PS, "evaluator", 3, (2, False, False, None)),
    ],
)
def test_the_role_of_a_task_follows_from_its_job_and_the_cluster(jobs, task_type, task_index, expected):
    config = make(jobs, task_type, task_index)
    assert (config.num_workers, config.is_chief, config.is_coordinator, config.address) == expected
    assert config.task_name == f"{task_type} {task_index}"
    assert config.has_parameter_servers == ("ps" in jobs)
    assert config.is_evaluator == (task_type == "evaluator")


@pytest.mark.parametrize(
    ("jobs", "task_type", "indices", "distributed"),
    [
        ({"worker": ["a:1"]}, "worker", {}, False),
        ({"chief": ["c:1"]}, "chief", {}, False),
        ({"worker": ["a:1"], "evaluator": ["e:1"]}, "worker", {}, False),
        ({"worker": ["a:1"], "evaluator": ["e:1"]}, "evaluator", {}, False),
        ({"worker": ["a:1"]}, "evaluator", {}, False),
        (WORKERS, "worker", {}, True),
        (WORKERS, "evaluator", {}, True),
        ({"chief": ["c:1"], "worker": ["a:1"]}, "chief", {}, True),
        (PS, "ps", {}, True),
        # The task lists only its own address but has index 1, so there is a task with index 0 too.
        ({"worker": ["b:1"]}, "worker", {"worker": [1]}, True),
    ],
)
def test_a_cluster_is_distributed_if_more_than_one_process_trains(jobs, task_type, indices, distributed):
    task_index = indices.get(task_type, [0])[0]
    assert make(jobs, task_type, task_index, indices=indices).is_distributed is distributed


def test_peers_are_all_others_but_the_evaluator():
    jobs = {**PS, "evaluator": ["e:1"]}
    assert make(jobs, "worker", 1).peers() == (Task("chief", 0, "c:1"), Task("worker", 0, "a:1"), Task("ps", 0, "p:1"))
    assert make(jobs, "evaluator").peers() == ()


def test_empty_jobs_are_left_out():
    assert make({**WORKERS, "ps": [], "chief": []}, "worker") == make(WORKERS, "worker")


def test_a_config_is_a_value():
    config = make(PS, "worker", 1)
    same = make(dict(reversed(PS.items())), "worker", 1)
    assert config == same
    assert hash(config) == hash(same)
    assert config != make(PS, "worker", 0)
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert dataclasses.replace(config, task_index=0) == make(PS, "worker", 0)
    with pytest.raises(TypeError):
        config.jobs["worker"] = ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.task_index = 0


def test_a_config_does_not_change_with_the_mapping_it_was_made_from():
    jobs = {"worker": ["a:1"]}
    config = make(jobs, "worker")
    jobs["worker"].append("b:1")
    jobs["ps"] = ["c:1"]
    assert config.jobs == {"worker": ("a:1",)}


def test_sparse_job_keeps_the_real_indices():
    config = make({"worker": ["b:1"], "ps": ["p:1"]}, "worker", 1, indices={"worker": [1]})
    assert config.address == "b:1"
    assert config.task_name == "worker 1"
    assert config.peers() == (Task("ps", 0, "p:1"),)
    assert config.num_workers == 1
    assert not config.is_chief
    assert pickle.loads(pickle.dumps(config)) == config


def test_worker_0_of_a_ps_cluster_that_lists_no_chief_is_not_the_chief():
    assert not make({"worker": ["b:1"], "ps": ["p:1"]}, "worker", 0, indices={"worker": [0]}).is_chief


def test_sparse_indices_are_put_in_order_and_dense_ones_dropped():
    assert make({"worker": ["b:1", "a:1"]}, "worker", 1, indices={"worker": [4, 1]}).address == "a:1"
    assert make({"worker": ["b:1", "a:1"]}, "worker", 1, indices={"worker": [1, 0]}) == make(WORKERS, "worker", 1)


BAD = [
    (
        {"trainer": ["a:1"]},
        ("trainer", 0),
        "expected the jobs in cluster to be among chief, master, worker, ps, evaluator, received 'trainer'; "
        "rename or remove this job.",
    ),
    (
        {"chief": ["a:1"], "master": ["b:1"]},
        ("chief", 0),
        "expected cluster to have either chief or master, which mean the same, received both; remove one of them.",
    ),
    (
        {"chief": ["a:1", "b:1"]},
        ("chief", 0),
        "expected cluster.chief to have one address, since a cluster has one chief, received 2: ['a:1', 'b:1']; "
        "remove all but one.",
    ),
    (
        {"worker": ["a:1"], "evaluator": ["b:1", "c:1"]},
        ("worker", 0),
        "expected cluster.evaluator to have one address, since a cluster has one evaluator, "
        "received 2: ['b:1', 'c:1']; remove all but one.",
    ),
    (
        {"worker": ["a:1", "b:1", "A:1"]},
        ("worker", 0),
        "expected every task in cluster to have an address of its own, received 'A:1' for both worker 0 and worker 2; "
        "change one of them.",
    ),
    (
        {"chief": ["a:1"], "worker": ["a:1"]},
        ("worker", 0),
        "expected every task in cluster to have an address of its own, received 'a:1' for both chief 0 and worker 0; "
        "change one of them.",
    ),
    (
        {"worker": ["a:1"], "ps": ["b:1"]},
        ("worker", 0),
        "expected cluster to have a chief, which coordinates the workers and ps, received worker, ps; "
        "add cluster.chief with one address.",
    ),
    (
        {"chief": ["a:1"], "ps": ["b:1"]},
        ("chief", 0),
        "expected cluster to have workers that train, received chief, ps; "
        "add cluster.worker with at least one address.",
    ),
    (
        {"evaluator": ["b:1"]},
        ("evaluator", 0),
        "expected cluster to have workers that train, received evaluator; "
        "add cluster.worker with at least one address.",
    ),
    (
        {"worker": ["a:1"]},
        ("trainer", 0),
        "expected task.type to be one of chief, master, worker, ps, evaluator, received 'trainer'.",
    ),
    (
        {"worker": ["a:1"]},
        ("chief", 0),
        "expected task.type to be one of the jobs in cluster (worker), received 'chief'; "
        "add cluster.chief with at least one address or correct the task type.",
    ),
    (
        {},
        ("worker", 0),
        "expected task.type to be one of the jobs in cluster (there are none), received 'worker'; "
        "add cluster.worker with at least one address or correct the task type.",
    ),
    (
        {"worker": ["a:1"]},
        (None, 0),
        "expected task.type to be one of the jobs in cluster (worker), received None; "
        "set the task type and index of this process.",
    ),
    (
        {},
        (None, 1),
        "expected task.index to be 0 for a single process, received 1; list all processes in cluster.",
    ),
    (
        {"worker": ["a:1", "b:1"]},
        ("worker", 2),
        "expected task.index to be an index of cluster.worker, which has 0 to 1, received 2; "
        "correct the index or add the address of this task.",
    ),
    (
        {"worker": ["a:1"]},
        ("worker", -1),
        "expected task.index to be an integer of at least 0, received -1.",
    ),
    (
        {"worker": ["a:1"]},
        ("worker", False),
        "expected task.index to be an integer of at least 0, received False.",
    ),
    (
        {"worker": ["a:1"]},
        ("worker", 0.0),
        "expected task.index to be an integer of at least 0, received 0.0.",
    ),
    (
        {"chief": ["a:1"], "worker": []},
        ("worker", 0),
        "expected cluster.worker to have at least one address, since this process is worker 0, "
        "received an empty list; add the address of this task.",
    ),
    (
        {"worker": "a:1"},
        ("worker", 0),
        "expected cluster.worker to be a list of addresses, received 'a:1'; write it as [\"a:1\"].",
    ),
    (
        {"worker": ["a:1", "b"]},
        ("worker", 0),
        "expected cluster.worker[1] to be an address host:port, received 'b'; add the port.",
    ),
]


@pytest.mark.parametrize(("jobs", "task", "message"), BAD)
def test_jobs_and_tasks_that_do_not_fit_are_refused(jobs, task, message):
    with pytest.raises(ValueError) as caught:
        make(jobs, *task)
    assert str(caught.value) == message


@pytest.mark.parametrize("own", [[1], [1, 1], [1, 2, 3]])
def test_refuses_indices_that_do_not_fit(own):
    with pytest.raises(ValueError, match=r"expected a different index for each address of cluster\.worker"):
        make(WORKERS, "worker", 1, indices={"worker": own})


def test_refuses_indices_of_an_unknown_job_and_indices_that_are_not_integers():
    with pytest.raises(ValueError, match=r"each address of cluster\.ps"):
        make(WORKERS, "worker", indices={"ps": [1]})
    with pytest.raises(ValueError, match=r"the indices of cluster\.worker to be an integer .* received True"):
        make({"worker": ["a:1"]}, "worker", indices={"worker": [True]})


def test_refuses_an_index_that_a_sparse_job_leaves_out():
    with pytest.raises(ValueError, match="which has 1, 4, received 0"):
        make(WORKERS, "worker", 0, indices={"worker": [1, 4]})
