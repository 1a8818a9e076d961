from __future__ import annotations

import json
import re
import socket

import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.cluster import ClusterConfig, PeerTimeoutError, PortInUseError
from tfdist.strategies import multi_worker_mirrored


def test_a_cluster_with_parameter_servers_is_refused():
    jobs = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    with pytest.raises(
        ValueError, match=r"expected a cluster of workers for .*received one with job ps; use 'parameter"
    ):
        multi_worker_mirrored(cluster=ClusterConfig(jobs=jobs, task_type="worker"))


def test_the_evaluator_is_refused():
    cluster = ClusterConfig(jobs={"worker": ["a:1", "b:1"], "evaluator": ["c:1"]}, task_type="evaluator")
    with pytest.raises(
        ValueError,
        match=re.escape(
            "expected a task that trains (chief or worker), received the evaluator; "
            "use 'auto' or 'one_device' in the evaluator."
        ),
    ):
        create_strategy("multi_worker_mirrored", cluster=cluster)


def test_a_port_already_taken_is_an_error_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cluster = ClusterConfig(jobs={"worker": [f"127.0.0.1:{port}", "127.0.0.1:1"]}, task_type="worker")
        with pytest.raises(PortInUseError, match=f"worker 0 .*{port}"):
            create_strategy("multi_worker_mirrored", cluster=cluster)


def test_a_peer_that_does_not_answer_is_named(free_ports):
    own, other = free_ports(2)
    cluster = ClusterConfig(jobs={"worker": [f"127.0.0.1:{own}", f"127.0.0.1:{other}"]}, task_type="worker")
    with pytest.raises(
        TimeoutError,
        match=re.escape(f"worker 1 at 127.0.0.1:{other} did not answer in 2 s (connection refused); start it"),
    ):
        create_strategy("auto", cluster=cluster, startup_timeout_seconds=2)


def test_a_host_that_does_not_resolve_is_named(free_ports):
    (own,) = free_ports(1)
    cluster = ClusterConfig(
        jobs={"chief": [f"127.0.0.1:{own}"], "worker": ["no-such-host.invalid:2222"]}, task_type="chief"
    )
    with pytest.raises(
        PeerTimeoutError,
        match=re.escape("worker 0 at no-such-host.invalid:2222 did not answer in 2 s (name does not resolve); check"),
    ):
        create_strategy("multi_worker_mirrored", cluster=cluster, startup_timeout_seconds=2)


def test_a_list_of_devices_is_refused():
    with pytest.raises(
        ValueError,
        match=r"^expected devices of the strategy multi_worker_mirrored to be a number, received \['CPU:0'\]; write",
    ):
        create_strategy("multi_worker_mirrored", cluster=ClusterConfig(), devices=["CPU:0"])


def test_fewer_devices_than_gpus_are_refused(monkeypatch):
    stock = tf.config.list_physical_devices
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(4)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: gpus if kind == "GPU" else stock(kind))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, enable: None)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: None)
    with pytest.raises(
        ValueError, match=r"to be 4, the GPUs of this worker, received 2; hide the other GPUs with CUDA_"
    ):
        create_strategy("multi_worker_mirrored", cluster=ClusterConfig(), devices=2)


def test_one_worker_may_have_several_logical_cpus(children):
    ended = children.run(
        "import tensorflow as tf, tfdist\n"
        "strategy = tfdist.create_strategy('multi_worker_mirrored', devices=3)\n"
        "total = strategy.reduce('sum', strategy.run(tf.function(lambda: tf.ones([]))), axis=None)\n"
        "print(strategy.num_replicas_in_sync, float(total))\n"
    )
    assert ended.out.split() == ["3", "3.0"]


TWICE = """
import tfdist

strategy = tfdist.create_strategy()
for name in ("auto", "multi_worker_mirrored"):
    try:
        tfdist.create_strategy(name)
    except RuntimeError as error:
        print(error)
print(tfdist.create_strategy("mirrored", devices=["CPU:0"]).num_replicas_in_sync)
"""


def test_a_second_strategy_of_a_cluster_is_refused_by_its_reason_and_not_by_the_port(children, free_ports):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    started = []
    for index in range(2):
        text = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        started.append(children.start(TWICE, env={"TF_CONFIG": text}))
    for child in started:
        ended = child.end()
        refusal = (
            "expected one strategy of a cluster in a process, received a call for multi_worker_mirrored after "
            "multi_worker_mirrored was made; use the strategy that was made first for every model, or start the "
            "program again.\n"
        )
        assert (ended.code, ended.out) == (0, 2 * refusal + "1\n")
