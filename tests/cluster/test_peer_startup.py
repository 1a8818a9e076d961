from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import time

import pytest

from tfdist.cluster import (
    ClusterConfig,
    PeerTimeoutError,
    PortInUseError,
    Task,
    background_probes,
    peer_startup,
    sockets,
)
from tfdist.cluster.peer_startup import probe_peers, wait_for_peers

from .conftest import DEADLINE


def cluster(ports, index=0, host="localhost", kind="worker", **jobs):
    return ClusterConfig(
        jobs={"worker": [f"{host}:{port}" for port in ports], **jobs}, task_type=kind, task_index=index
    )


def refused(address):
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        connection.settimeout(5.0)
        return connection.connect_ex((host, int(port))) != 0


@pytest.fixture(autouse=True)
def short_linger(monkeypatch):
    monkeypatch.setattr(peer_startup, "_LINGER_SECONDS", 0.02)


def wait_then_serve(config, together, server):
    """Does what a task does: waits for its peers, then opens a server on its port, as TensorFlow would."""
    wait_for_peers(config, timeout_seconds=DEADLINE)
    server(int(config.address.rpartition(":")[2]))
    together.wait(DEADLINE)


# ---- all peers answer ----


def test_a_single_process_does_not_wait():
    wait_for_peers(ClusterConfig(), timeout_seconds=1.0)


def test_tasks_in_threads_wait_for_each_other(held_ports, background, server):
    ports = held_ports(5)
    together = threading.Barrier(5)
    waits = [background(wait_then_serve, cluster(ports, index), together, server) for index in range(5)]
    for wait in waits:
        assert wait.result(DEADLINE) is None


def test_the_tasks_of_a_ps_cluster_wait_for_each_other_but_not_for_the_evaluator(held_ports, background, server):
    chief, worker, ps, evaluator = held_ports(4)
    jobs = {"chief": [f"localhost:{chief}"], "ps": [f"localhost:{ps}"], "evaluator": [f"localhost:{evaluator}"]}
    together = threading.Barrier(3)
    waits = [
        background(wait_then_serve, cluster([worker], 0, kind=kind, **jobs), together, server)
        for kind in ("chief", "worker", "ps")
    ]
    for wait in waits:
        assert wait.result(DEADLINE) is None
    wait_for_peers(cluster([worker], 0, kind="evaluator", **jobs), timeout_seconds=1.0)


CHILD = """
import socket
import sys
import threading
from tfdist.cluster import ClusterConfig
from tfdist.cluster.peer_startup import wait_for_peers
config = ClusterConfig.detect()
wait_for_peers(config, timeout_seconds=float(sys.argv[1]))
with socket.create_server(("127.0.0.1", int(config.address.rpartition(":")[2]))) as server:
    def reply():
        while True:
            server.accept()[0].sendall(b"settings")
    threading.Thread(target=reply, daemon=True).start()
    print(config.task_name, "reached", len(config.peers()), flush=True)
    sys.stdin.readline()
"""


def test_tasks_in_processes_wait_for_each_other(held_ports):
    ports = held_ports(2)
    with contextlib.ExitStack() as stack:
        children = []
        for index in range(2):
            environment = {**os.environ, "TF_CONFIG": cluster(ports, index).to_tf_config()}
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(DEADLINE)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(child.wait, DEADLINE)
            stack.callback(child.kill)
            children.append(child)
        watchdog = threading.Timer(2 * DEADLINE, lambda: [child.kill() for child in children])
        stack.callback(watchdog.cancel)
        watchdog.start()
        assert [child.stdout.readline() for child in children] == ["worker 0 reached 1\n", "worker 1 reached 1\n"]
        assert [(child.communicate("\n", timeout=DEADLINE)[0], child.returncode) for child in children] == [("", 0)] * 2


def test_a_peer_may_start_late(held_ports, server):
    ports = held_ports(2)
    lines = []

    def log(line):
        if not lines:
            server(ports[1])
        lines.append(line)

    wait_for_peers(cluster(ports), timeout_seconds=DEADLINE, log=log, report_every_seconds=0.05)
    assert lines[0] == f"waiting for worker 1 at localhost:{ports[1]} (0 s of 20 s): connection refused"


def test_a_name_may_resolve_late(held_ports, server, monkeypatch):
    ports, (_, late) = held_ports(1), server()
    real, known, lines = socket.getaddrinfo, threading.Event(), []

    def getaddrinfo(host, *args, **kwargs):
        if host == "late.invalid" and not known.is_set():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1" if host == "late.invalid" else host, *args, **kwargs)

    def log(line):
        lines.append(line)
        known.set()

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    config = ClusterConfig(jobs={"worker": [f"localhost:{ports[0]}", f"late.invalid:{late}"]}, task_type="worker")
    wait_for_peers(config, timeout_seconds=DEADLINE, log=log, report_every_seconds=0.05)
    assert "name does not resolve" in lines[0]


def test_more_connections_than_the_queue_holds_are_accepted(held_ports, background, server, monkeypatch):
    monkeypatch.setattr(sockets, "_BACKLOG", 1)
    ports, waiting = held_ports(2), threading.Event()
    wait = background(
        wait_for_peers,
        cluster(ports),
        timeout_seconds=DEADLINE,
        log=lambda line: waiting.set(),
        report_every_seconds=0.05,
    )
    assert waiting.wait(DEADLINE)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", ports[0]), timeout=DEADLINE) as visitor:
            assert visitor.makefile().read() == "tfdist worker 0\n"
    server(ports[1])
    assert wait.result(DEADLINE) is None


def test_a_connection_makes_the_missing_peers_be_probed_again_at_once(held_ports, background, server, monkeypatch):
    monkeypatch.setattr(background_probes, "_FIRST_PAUSE_SECONDS", 10 * DEADLINE)
    monkeypatch.setattr(background_probes, "_LONGEST_PAUSE_SECONDS", 10 * DEADLINE)
    ports, waiting = held_ports(2), threading.Event()
    wait = background(
        wait_for_peers,
        cluster(ports),
        timeout_seconds=DEADLINE,
        log=lambda line: waiting.set(),
        report_every_seconds=0.1,
    )
    assert waiting.wait(DEADLINE)
    server(ports[1])
    assert not refused(f"127.0.0.1:{ports[0]}")
    assert wait.result(DEADLINE) is None


def test_a_task_that_has_reached_all_peers_answers_them_a_little_longer(held_ports, background, server, monkeypatch):
    monkeypatch.setattr(peer_startup, "_LINGER_SECONDS", 1.5)
    (own,), (_, port) = held_ports(), server()
    wait = background(wait_for_peers, cluster([own, port], host="127.0.0.1"), timeout_seconds=DEADLINE)
    end = time.monotonic() + DEADLINE
    while refused(f"127.0.0.1:{own}") and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(0.1)
    assert not refused(f"127.0.0.1:{own}")
    assert wait.result(DEADLINE) is None


def test_the_peers_to_wait_for_may_be_given(held_ports, server):
    ports, (_, up) = held_ports(2), server()
    wait_for_peers(cluster(ports), timeout_seconds=DEADLINE, peers=[Task("worker", 7, f"127.0.0.1:{up}")] * 2)


# ---- a peer does not answer ----


def test_a_peer_that_does_not_listen_is_named(held_ports):
    ports = held_ports(2)
    with pytest.raises(PeerTimeoutError) as caught:
        wait_for_peers(cluster(ports), timeout_seconds=0.15)
    assert str(caught.value) == (
        f"worker 1 at localhost:{ports[1]} did not answer in 0.15 s (connection refused); "
        "start it, or look in its output for why it ended."
    )
    peer = Task("worker", 1, f"localhost:{ports[1]}")
    assert caught.value.missing == ((peer, "connection refused"),)
    assert isinstance(caught.value, TimeoutError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.missing) == (str(caught.value), caught.value.missing)


def test_all_missing_peers_are_named_in_one_sentence(held_ports, server):
    ports, (_, up) = held_ports(2), server()
    config = ClusterConfig(
        jobs={"worker": [*(f"localhost:{port}" for port in ports), "a..b:1", f"127.0.0.1:{up}"]}, task_type="worker"
    )
    with pytest.raises(PeerTimeoutError) as caught:
        wait_for_peers(config, timeout_seconds=0.15)
    assert str(caught.value) == (
        f"2 of 3 peers did not answer in 0.15 s: worker 1 at localhost:{ports[1]} (connection refused), "
        "worker 2 at a..b:1 (name does not resolve); start it, or look in its output for why it ended "
        "and check the host name and that this machine's DNS knows it."
    )


def test_a_resolver_that_hangs_does_not_delay_the_deadline(held_ports, monkeypatch):
    ports, release = held_ports(1), threading.Event()

    def hangs(*args, **kwargs):
        release.wait(DEADLINE)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    config = ClusterConfig(jobs={"worker": [f"localhost:{ports[0]}", "slow.invalid:1"]}, task_type="worker")
    with pytest.raises(PeerTimeoutError, match="the look-up of its name has not returned"):
        wait_for_peers(config, timeout_seconds=0.1)
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("tfdist"):
            thread.join(DEADLINE)


def test_a_task_whose_own_port_is_taken_is_refused(server):
    _, port = server()
    with pytest.raises(PortInUseError, match=f"worker 0 expected port {port} to be free"):
        wait_for_peers(cluster([port]), timeout_seconds=DEADLINE)


def test_reports_are_short_for_many_peers(held_ports):
    ports, lines = held_ports(12), []
    with pytest.raises(PeerTimeoutError):
        wait_for_peers(cluster(ports), timeout_seconds=0.3, log=lines.append, report_every_seconds=0.2)
    assert lines[0] == f"waiting for worker 1 at localhost:{ports[1]} (0 s of 0.3 s): connection refused"
    assert lines[8] == "waiting for 3 more tasks (0 s of 0.3 s)"
    assert len(lines) == 9


@pytest.mark.parametrize("outcome", ["reached", "timeout", "log"])
def test_no_file_descriptor_and_no_thread_stays_open(held_ports, server, outcome):
    ports = held_ports(2)
    if outcome == "reached":
        server(ports[1])
    before = sorted(os.listdir("/proc/self/fd")), threading.active_count()

    def log(line):
        raise KeyError(line)

    with pytest.raises({"timeout": PeerTimeoutError, "log": KeyError}[outcome]) if outcome != "reached" else _nothing():
        wait_for_peers(
            cluster(ports),
            timeout_seconds=0.3 if outcome == "timeout" else DEADLINE,
            log=log if outcome == "log" else None,
            report_every_seconds=0.1 if outcome == "log" else 10.0,
        )
    # The server of the test closes its end of a connection a moment later.
    end = time.monotonic() + DEADLINE
    while (after := (sorted(os.listdir("/proc/self/fd")), threading.active_count())) != before:
        assert time.monotonic() < end, (after, before)
        time.sleep(0.01)
    assert refused(f"127.0.0.1:{ports[0]}")


def _nothing():
    return contextlib.nullcontext()


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["timeout_seconds", "report_every_seconds"])
def test_times_have_to_be_positive_and_finite(name, value):
    with pytest.raises(ValueError, match=f"expected {name} to be a positive, finite number of seconds, received"):
        wait_for_peers(ClusterConfig(), **{"timeout_seconds": 1.0, name: value})


# ---- probing ----


def test_probing_returns_the_peers_that_do_not_answer(held_ports, server):
    ports, (_, up) = held_ports(2), server()
    config = cluster([*ports, up])
    assert probe_peers(config) == ((Task("worker", 1, f"localhost:{ports[1]}"), "connection refused"),)
    assert probe_peers(ClusterConfig()) == ()


def test_probing_does_not_wait_for_a_resolver(held_ports, monkeypatch):
    ports, release = held_ports(1), threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: release.wait(DEADLINE) and [])
    config = ClusterConfig(jobs={"worker": [f"localhost:{ports[0]}", "slow.invalid:1"]}, task_type="worker")
    ((peer, reason),) = probe_peers(config, timeout_seconds=0.1)
    assert (peer.name, reason) == ("worker 1", "the look-up of its name has not returned")
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("tfdist"):
            thread.join(DEADLINE)


def test_probing_refuses_a_time_that_is_not_positive():
    with pytest.raises(ValueError, match="timeout_seconds"):
        probe_peers(ClusterConfig(), timeout_seconds=0)
