from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tfdist.cluster import ClusterConfig, PeerTimeoutError, peer_shutdown
from tfdist.cluster.peer_shutdown import wait_until_gone
from tfdist.cluster.peer_startup import wait_for_peers

from .conftest import DEADLINE, close_listening

COORDINATOR = """
import socket, sys, threading
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    threading.Thread(target=sys.stdin.readline).start()
    while threading.active_count() > 1:
        server.settimeout(0.1)
        try:
            server.accept()[0].sendall(b"settings")
        except TimeoutError:
            pass
"""


def test_returns_when_the_coordinator_process_has_ended(background):
    child = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        address = f"127.0.0.1:{child.stdout.readline().strip()}"
        wait = background(wait_until_gone, address, poll_seconds=0.02, appear_timeout_seconds=DEADLINE)
        with pytest.raises(TimeoutError):
            wait.result(0.3)
        child.communicate("\n", timeout=DEADLINE)
        assert wait.result(DEADLINE) == "gone"
    finally:
        child.kill()
        child.wait(DEADLINE)


def test_waits_for_a_server_that_appears_late(held_ports, background, server):
    (port,) = held_ports()
    wait = background(wait_until_gone, f"127.0.0.1:{port}", poll_seconds=0.02, appear_timeout_seconds=None)
    with pytest.raises(TimeoutError):
        wait.result(0.1)
    opened, _ = server(port)
    with pytest.raises(TimeoutError):
        wait.result(0.3)
    close_listening(opened)
    assert wait.result(DEADLINE) == "gone"


def test_a_server_that_never_appears_is_a_timeout(held_ports):
    (port,) = held_ports()
    with pytest.raises(PeerTimeoutError) as caught:
        wait_until_gone(f"127.0.0.1:{port}", poll_seconds=0.02, appear_timeout_seconds=0.1)
    assert str(caught.value) == (
        f"127.0.0.1:{port} did not appear in 0.1 s (connection refused); start the task that listens there, "
        "or look in its output for why it ended."
    )


def test_a_coordinator_that_still_waits_for_its_peers_has_not_appeared_yet(held_ports, background, server):
    chief, worker, ps = held_ports(3)
    config = ClusterConfig(
        jobs={
            "chief": [f"127.0.0.1:{chief}"],
            "worker": [f"127.0.0.1:{worker}"],
            "ps": [f"127.0.0.1:{ps}"],
        },
        task_type="chief",
    )
    waiting = threading.Event()
    chief_waits = background(
        wait_for_peers,
        config,
        timeout_seconds=DEADLINE,
        log=lambda line: waiting.set(),
        report_every_seconds=0.05,
    )
    assert waiting.wait(DEADLINE)
    with pytest.raises(PeerTimeoutError, match="did not appear"):
        wait_until_gone(f"127.0.0.1:{chief}", poll_seconds=0.02, appear_timeout_seconds=0.3)
    server(worker)
    server(ps)
    assert chief_waits.result(DEADLINE) is None


def test_only_consecutive_misses_count(monkeypatch):
    down = "connection refused"
    stopped = "the process accepts connections but does not reply"
    replies = [down, None, down, down, None, down, stopped, down, down, down]
    monkeypatch.setattr(peer_shutdown, "probe_address", lambda *args, **kwargs: replies.pop(0))
    assert wait_until_gone("a:1", poll_seconds=0.001, misses=3, appear_timeout_seconds=DEADLINE) == "gone"
    assert replies == []


@pytest.mark.parametrize("name", ["poll_seconds", "misses", "appear_poll_seconds", "appear_timeout_seconds"])
def test_refuses_numbers_that_are_not_positive(name):
    with pytest.raises(ValueError, match=f"expected {name} to be positive, received 0"):
        wait_until_gone("a:1", **{"appear_timeout_seconds": 1.0, name: 0})


def test_refuses_a_text_that_is_not_an_address():
    with pytest.raises(ValueError, match="add the port"):
        wait_until_gone("localhost", appear_timeout_seconds=1.0)
