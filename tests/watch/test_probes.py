"""Probes tell a machine whose process is stopped from one that is gone, and a server that answers."""

from __future__ import annotations

import socket
import threading
import time

from tfdist.cluster.probe import REFUSED, SILENT, UNRESOLVED
from tfdist.watch.probes import Probes
from tfdist.watch.standing import SERVES

DEADLINE_SECONDS = 60.0


def reply(probes: Probes, worker: int, silent_seconds: float = 1e9) -> str:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := probes.reply(worker, silent_seconds=silent_seconds)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_replies(free_ports):
    (closed,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as serving:

        def serve() -> None:
            connection, _ = serving.accept()
            with connection:
                # The first bytes of HTTP/2, which TensorFlow's server sends.
                connection.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00")

        threading.Thread(target=serve, daemon=True).start()
        ports = [silent.getsockname()[1], closed, serving.getsockname()[1]]
        probes = Probes([*(f"127.0.0.1:{port}" for port in ports), "a..b:1"])
        assert [reply(probes, worker) for worker in range(4)] == [SILENT, REFUSED, SERVES, UNRESOLVED]


def test_a_reply_from_before_the_silence_does_not_count(free_ports):
    (closed,) = free_ports(1)
    probes = Probes([f"127.0.0.1:{closed}"])
    assert reply(probes, 0) == REFUSED
    assert probes.reply(0, silent_seconds=0.0) is None
