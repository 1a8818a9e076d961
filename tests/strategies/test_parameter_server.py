from __future__ import annotations

import json
import re

import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.cluster import ClusterConfig
from tfdist.keras_compat import keras_in_use
from tfdist.strategies import parameter_server

# Every task runs this program. A worker or a ps ends inside create_strategy.
PROGRAM = """
import tensorflow as tf
import tfdist

strategy = tfdist.create_strategy("auto", startup_timeout_seconds=100)
with strategy.scope():
    variable = tf.Variable(41.0)
variable.assign_add(1.0)
print("coordinator", isinstance(strategy, tf.distribute.ParameterServerStrategy), variable.numpy(), variable.device)
try:
    tfdist.create_strategy("parameter_server")
except RuntimeError as error:
    print(error)
"""


def cluster_of(task_type, **jobs):
    return ClusterConfig(
        jobs={job: [f"{job}:{i}" for i in range(1, n + 1)] for job, n in jobs.items()}, task_type=task_type
    )


@pytest.mark.parametrize(
    ("cluster", "received"),
    [(ClusterConfig(), "no cluster"), (cluster_of("chief", chief=1, worker=2), "chief, worker")],
)
def test_a_cluster_without_parameter_servers_is_refused(cluster, received):
    with pytest.raises(
        ValueError,
        match=re.escape(
            "expected a cluster with the jobs chief, worker and ps for the strategy parameter_server, received "
            f"{received}; set TF_CONFIG, or start the program with `tfdist launch --workers 2 --ps 1`."
        ),
    ):
        create_strategy("parameter_server", cluster=cluster)


def test_a_cluster_without_a_coordinator_is_refused(monkeypatch):
    jobs = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(ValueError, match="expected cluster to have a chief, which coordinates the workers and ps"):
        create_strategy("parameter_server")


def test_a_view_of_the_cluster_without_a_coordinator_is_refused(monkeypatch):
    # With enableDynamicWorker, Kubeflow gives a worker this view of its cluster.
    jobs = {"worker": {"0": "127.0.0.1:1"}, "ps": ["127.0.0.1:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(
        ValueError,
        match=r"expected a cluster with a chief for the strategy parameter_server, received the jobs worker, ps; "
        r"add cluster\.chief, the coordinator that worker 0 serves\.",
    ):
        create_strategy("parameter_server")


def test_the_evaluator_is_refused():
    cluster = cluster_of("evaluator", chief=1, worker=1, ps=1, evaluator=1)
    with pytest.raises(
        ValueError,
        match="expected one of the tasks chief, worker and ps, received evaluator 0; use 'auto' or 'one_device' in the",
    ):
        create_strategy("parameter_server", cluster=cluster)


def test_a_variable_partitioner_is_refused_with_keras_3_and_accepted_with_keras_2(free_ports):
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    chief, worker, ps = free_ports(3)
    cluster = ClusterConfig(
        jobs={"chief": [f"127.0.0.1:{chief}"], "worker": [f"127.0.0.1:{worker}"], "ps": [f"127.0.0.1:{ps}"]},
        task_type="chief",
    )
    if keras_in_use().is_keras3:
        kind, message = (
            ValueError,
            re.escape(
                "expected no variable_partitioner with Keras 3, whose variables cannot be sharded "
                "(keras-team/keras#18624), received a partitioner; leave it out, or use tf_keras "
                "(TF_USE_LEGACY_KERAS=1)."
            ),
        )
    else:
        # The partitioner is accepted, so the call fails later, because the other tasks do not answer.
        kind, message = TimeoutError, "2 of 2 peers did not answer in 0.2 s"
    with pytest.raises(kind, match=message):
        parameter_server(cluster=cluster, variable_partitioner=partitioner, startup_timeout_seconds=0.2)


def test_workers_and_ps_serve_and_end_with_the_coordinator(children, free_ports):
    ports = free_ports(3)
    jobs = {job: [f"127.0.0.1:{port}"] for job, port in zip(("chief", "worker", "ps"), ports, strict=True)}
    started = {
        job: children.start(
            PROGRAM, env={"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": job, "index": 0}})}
        )
        for job in jobs
    }
    ended = {job: child.end() for job, child in started.items()}
    assert {job: end.code for job, end in ended.items()} == {"chief": 0, "worker": 0, "ps": 0}
    assert ended["chief"].out == (
        "coordinator True 42.0 /job:ps/replica:0/task:0/device:CPU:0\n"
        "expected one strategy of a cluster in a process, received a call for parameter_server after parameter_server "
        "was made; use the strategy that was made first for every model, or start the program again.\n"
    )
    coordinator = jobs["chief"][0]
    for job in ("worker", "ps"):
        assert ended[job].out == ""
        assert f"{job} 0 serves at {jobs[job][0]} for the coordinator at {coordinator}" in ended[job].err
        assert f"{job} 0 ends: the coordinator at {coordinator} is done" in ended[job].err
