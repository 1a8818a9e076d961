"""What tasks send each other: encoding, strangers at the port, partial clusters, and names whose look-up hangs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time

import pytest

from tests.doctor.clusters import Cluster, held_ports, lines
from tfdist.cluster import ClusterConfig
from tfdist.cluster.greeting import Greeting
from tfdist.cluster.probe import probe
from tfdist.doctor import wire
from tfdist.doctor.checks.clock import Offset
from tfdist.doctor.checks.directory import Directory
from tfdist.doctor.checks.disk import Room
from tfdist.doctor.checks.gpu import Gpu, Gpus
from tfdist.doctor.checks.threads import Threads
from tfdist.doctor.exchange import Exchange
from tfdist.doctor.facts import Facts
from tfdist.doctor.identity import Identity, Rival
from tfdist.doctor.link import Link
from tfdist.doctor.server import Server

DEADLINE_SECONDS = 60.0


def facts(task="worker 0", unique="a"):
    return Facts(
        identity=Identity(task=task, unique=unique, host="node0", process=1, machine="m"),
        is_complete=True,
        versions={"Python": "3.11.7"},
        cluster={"worker 0": "a:1"},
        threads=Threads(cpus=(0, 1), limit=1.5, settings={"OMP_NUM_THREADS": "2"}),
        memory=1 << 40,
        rooms=(Room(path="/data", free=5, files=None),),
        directory=Directory(path="/data", sight_seconds={"worker 1": None, "worker 2": 0.5}),
        links=(Link(target="worker 1", address="b:1", resolved=("::1",), clock=Offset(seconds=1.0, uncertainty=0.5)),),
        heard=(Identity(task="worker 1", unique="b", host="node1", process=2, machine="n"),),
        rivals=(Rival(task="worker 0", process=7),),
        gpus=Gpus(listed=(Gpu(unique="GPU-1", name="H200", driver="570", total=5, used=1),), visible=None),
    )


@pytest.fixture
def served():
    """The port of a server, and what it knows of other tasks."""
    exchange = Exchange(facts())
    server = Server(
        socket.create_server(("127.0.0.1", 0)),
        exchange,
        clock=time.time,
        deadline=time.monotonic() + DEADLINE_SECONDS,
    )
    yield server._listening.getsockname()[1], exchange
    server.close()


def talk(port, *messages, count=1):
    """Sends bytes after the greeting, and returns the lines that come back."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS) as connection:
        file = connection.makefile("rb")
        assert Greeting.from_bytes(file.readline()) == Greeting("worker 0")
        for message in messages:
            connection.sendall(message)
        return [file.readline() for _ in range(count)]


def test_facts_are_the_same_after_they_were_sent():
    sent = json.loads(json.dumps(wire.encode(facts())))
    assert wire.decode(Facts, sent) == facts()


def test_unknown_fields_of_another_version_are_ignored():
    sent = json.loads(json.dumps(wire.encode(facts())))
    assert wire.decode(Facts, {**sent, "phase_of_the_moon": 3}) == facts()


@pytest.mark.parametrize(
    "change",
    [
        {"identity": 3},
        {"identity": {**wire.encode(facts().identity), "unique": "a/../../other"}},
        {"versions": {"Python": 3}},
        {"cluster": None},
        {"links": [{}]},
        {"links": [{"target": "worker 1", "address": "nowhere"}]},
        {"links": [{"target": "worker 1", "address": "b:1", "resolved": ["nowhere"]}]},
    ],
    ids=range(7),
)
def test_facts_of_another_form_are_refused(change):
    sent = json.loads(json.dumps(wire.encode(facts())))
    with pytest.raises(ValueError):
        wire.decode(Facts, {**sent, **change})


def test_control_characters_from_the_network_are_removed():
    assert wire.decode(str, "\x1b[2Jworker\n") == " [2Jworker "


@pytest.mark.parametrize(
    "message",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b'{"kind": "hello"}\n',
        b'{"kind": "hello", "facts": {"identity": 3}}\n',
        b'{"kind": "report", "facts": null}\n',
    ],
    ids=range(7),
)
def test_a_stranger_is_dropped_and_the_server_goes_on(message, served):
    port, exchange = served
    with contextlib.suppress(ConnectionResetError):
        assert talk(port, message) == [b""]
    assert exchange.known() == []
    hello = json.dumps({"kind": "hello", "facts": wire.encode(facts("worker 1", "b"))}).encode() + b"\n"
    assert json.loads(talk(port, hello)[0])["facts"]["identity"]["task"] == "worker 0"
    assert [known.identity.task for known in exchange.known()] == ["worker 1"]


def test_a_training_that_waits_for_its_tasks_finds_this_task(served):
    answer = probe(f"127.0.0.1:{served[0]}", timeout_seconds=DEADLINE_SECONDS)
    assert (answer.reason, answer.task_name) == (None, "worker 0")


def test_a_process_without_a_port_is_noted(served):
    port, exchange = served
    assert talk(port, Greeting("worker 0", 4711).to_bytes()) == [b""]
    assert exchange.rivals() == [Rival(task="worker 0", process=4711)]


def test_a_reporting_task_hears_when_it_may_end(served):
    port, exchange = served
    report = json.dumps({"kind": "report", "facts": wire.encode(facts("worker 1", "b"))}).encode() + b"\n"
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS) as connection:
        file = connection.makefile("rb")
        file.readline()
        connection.sendall(report)
        assert exchange.wait_for(lambda: "worker 1" in exchange.reported(), deadline=time.monotonic() + 60)
        exchange.has_reported.set()
        assert json.loads(file.readline()) == {"kind": "done"}
    assert exchange.wait_until_delivered(deadline=time.monotonic() + DEADLINE_SECONDS)


def test_a_task_that_knows_only_a_part_of_the_cluster_is_reported_by_the_chief(tmp_path):
    with held_ports(3) as ports:
        chief, worker, ps = (f"localhost:{port}" for port in ports)
        jobs = {"chief": [chief], "worker": [worker], "ps": [ps]}
        partial = {"sparseCluster": {"worker": {"0": worker}, "ps": {"0": ps}}, "task": {"type": "worker", "index": 0}}
        alone = {"sparseCluster": {"ps": [ps]}, "task": {"type": "ps", "index": 0}}
        assert ClusterConfig.from_tf_config(json.dumps(partial)).indices
        with Cluster(tmp_path, jobs) as cluster:
            cluster.start("chief", 0)
            cluster.start("worker", 0, env={"TF_CONFIG": json.dumps(partial)})
            cluster.start("ps", 0, env={"TF_CONFIG": json.dumps(alone)})
            done = cluster.finish()
    assert [task.code for task in done] == [0, 0, 0]
    assert "tfdist doctor: 3 tasks: " in done[0].text
    assert lines(done[0].text, "fail") == []


def test_a_look_up_that_hangs_is_named(tmp_path):
    # The resolver is replaced in the process that runs the checks.
    hang = (
        "clock=[time.time, setattr(__import__('socket'), 'getaddrinfo', "
        "lambda host, *more, g=__import__('socket').getaddrinfo, **named: "
        "time.sleep(600) if host == 'slow.example' else g(host, *more, **named))][0]"
    )
    with held_ports(1) as ports:
        jobs = {"worker": [f"localhost:{ports[0]}", "slow.example:2222"]}
        with Cluster(tmp_path, jobs) as cluster:
            cluster.start("worker", 0, "--timeout-seconds", "4", sources=hang)
            (done,) = cluster.finish()
    failures = {check: text for check, _, text in lines(done.text, "fail")}
    assert "the look-up of the name 'slow.example' of worker 1 has not returned" in failures["names"]
    assert "did not come at slow.example:2222: the look-up of its name has not returned" in failures["reach"]
    assert (done.code, os.listdir(tmp_path)) == (1, [])
