"""Processes with a wrong task index are named, and no process waits long for a task that is missing for this reason."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from tfdist.cluster import ClusterConfig, PeerTimeoutError, PortInUseError, peer_startup
from tfdist.cluster.greeting import Greeting, send_greeting
from tfdist.cluster.peer_startup import wait_for_peers

from .conftest import DEADLINE

PATIENCE = 0.3


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr(peer_startup, "_PATIENCE_SECONDS", PATIENCE)
    monkeypatch.setattr(peer_startup, "_LINGER_SECONDS", 0.02)


def worker(ports, index):
    jobs = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    return ClusterConfig(jobs=jobs, task_type="worker", task_index=index)


def rival_of_worker_0(port):
    return send_greeting(Greeting("worker 0", 4711), hosts=("127.0.0.1",), port=port)


class Waiting:
    """wait_for_peers in a thread, which has opened its port."""

    def __init__(self, background, config, timeout_seconds=DEADLINE):
        self.lines = []
        started = threading.Event()

        def log(line):
            self.lines.append(line)
            started.set()

        self.result = background(
            wait_for_peers, config, timeout_seconds=timeout_seconds, log=log, report_every_seconds=0.05
        )
        assert started.wait(DEADLINE)

    def error(self):
        error = self.result.exception(DEADLINE)
        assert isinstance(error, PeerTimeoutError)
        return str(error)


def test_two_processes_with_one_index_both_end_and_name_each_other(held_ports, background):
    ports = held_ports(2)
    first = Waiting(background, worker(ports, 0))
    begin = time.monotonic()
    with pytest.raises(PortInUseError) as caught:
        wait_for_peers(worker(ports, 0), timeout_seconds=DEADLINE)
    assert str(caught.value) == (
        f"worker 0 expected port {ports[0]} to be free for its own address 127.0.0.1:{ports[0]}, but another process "
        "that is worker 0 listens there; give every process its own task.index in TF_CONFIG."
    )
    message = first.error()
    assert time.monotonic() - begin < DEADLINE / 2
    assert message.startswith(f"worker 1 at 127.0.0.1:{ports[1]} did not answer in ")
    assert message.endswith(
        f" s (connection refused), and another process ({os.getpid()}) was started as worker 0 at the same address; "
        "give every process its own task.index in TF_CONFIG."
    )
    note = f"another process ({os.getpid()}) was started as worker 0 at the same address; give every process its own"
    assert [line for line in first.lines if note in line] == [f"{note} task.index in TF_CONFIG"]


def test_processes_with_one_index_on_two_machines_find_each_other_instead_of_their_peer(held_ports, background):
    # Worker 1 believes that it is worker 0. It listens at the address of worker 1, as the ports of both are equal.
    ports = held_ports(2)
    wrong = Waiting(background, worker(ports[::-1], 0))
    first = Waiting(background, worker(ports, 0))
    for waiting, port in ((first, ports[1]), (wrong, ports[0])):
        message = waiting.error()
        assert message.startswith(f"worker 1 at 127.0.0.1:{port} did not answer in ")
        assert message.endswith(
            " s (another task answers there: worker 0); give every process its own task.index in TF_CONFIG."
        )


def test_the_peers_of_the_two_processes_do_not_wait_either(held_ports, background):
    ports = held_ports(4)
    waiting = [Waiting(background, worker(ports, index)) for index in (0, 1, 2)]
    begin = time.monotonic()
    assert rival_of_worker_0(ports[0]) == Greeting("worker 0")
    for one in waiting:
        message = one.error()
        assert message.startswith(f"worker 3 at 127.0.0.1:{ports[3]} did not answer in ")
        assert ", and another process (4711) was started as worker 0 at the same address; give every" in message
    assert time.monotonic() - begin < DEADLINE / 2


def test_a_missing_peer_that_no_wrong_index_explains_has_all_of_its_time(held_ports, background, server):
    ports = held_ports(3)
    first = Waiting(background, worker(ports, 0), timeout_seconds=2.0)
    assert rival_of_worker_0(ports[0]) == Greeting("worker 0")
    message = first.error()
    assert message.startswith("2 of 2 peers did not answer in 2 s: worker 1 at ")
    assert ", and another process (4711) was started as worker 0 at the same address; give every" in message


def test_a_second_process_does_no_harm_if_the_peers_come(held_ports, background, server):
    ports = held_ports(2)
    first = Waiting(background, worker(ports, 0))
    for _ in range(2):
        assert rival_of_worker_0(ports[0]) == Greeting("worker 0")
    server(ports[1])
    assert first.result.result(DEADLINE) is None


def test_a_port_holder_that_is_no_waiting_task_is_not_greeted(server, silent_server, monkeypatch):
    monkeypatch.setattr("tfdist.cluster.greeting._SECONDS", 0.1)
    for _, port in (server(), silent_server()):
        assert rival_of_worker_0(port) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"tfdist worker 1", b"tfdist Worker 1\n", b"tfdist worker\n", b"tfdist worker 1 process\n", b"\x00\xff\n"],
)
def test_other_lines_are_no_greetings(data):
    assert Greeting.from_bytes(data) is None


def test_strangers_do_not_disturb_a_task_that_waits(held_ports, background, server):
    ports = held_ports(2)
    first = Waiting(background, worker(ports, 0))
    strangers = []
    for number in range(100):
        stranger = socket.create_connection(("127.0.0.1", ports[0]), timeout=DEADLINE)
        strangers.append(stranger)
        if number % 2:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    server(ports[1])
    assert first.result.result(DEADLINE) is None
    for stranger in strangers:
        stranger.close()
    assert not any("another process" in line for line in first.lines)
