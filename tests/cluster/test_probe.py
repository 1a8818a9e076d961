from __future__ import annotations

import errno
import socket

import pytest

from tfdist.cluster import probe

FAST = 5.0


def test_a_server_that_listens_answers(server):
    _, port = server()
    assert probe.probe_address(f"127.0.0.1:{port}", timeout_seconds=FAST) is None
    assert probe.probe_address(f"localhost:{port}", timeout_seconds=FAST) is None


def test_a_port_that_nobody_listens_on_refuses_the_connection(held_ports):
    (port,) = held_ports()
    assert probe.probe_address(f"127.0.0.1:{port}", timeout_seconds=FAST) == "connection refused"
    assert probe.probe_address(f"localhost:{port}", timeout_seconds=FAST) == "connection refused"


def test_a_name_that_no_resolver_accepts_does_not_resolve():
    assert probe.probe_address("a..b:2222", timeout_seconds=FAST) == "name does not resolve"


def test_a_name_that_the_resolver_does_not_know_does_not_resolve(monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(probe.socket, "getaddrinfo", unknown)
    assert probe.probe_address("worker-7:2222", timeout_seconds=FAST) == "name does not resolve"


class FakeConnection(socket.socket):
    outcome: Exception

    def connect(self, address):
        raise self.outcome


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (TimeoutError("timed out"), "no reply"),
        (OSError(errno.EHOSTUNREACH, "x"), "no route to host"),
        (OSError(errno.ENETUNREACH, "x"), "no route to host"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "cannot assign requested address"),
        (ConnectionResetError(errno.ECONNRESET, "x"), None),
    ],
)
def test_an_error_of_connect_becomes_a_reason(monkeypatch, outcome, reason):
    monkeypatch.setattr(FakeConnection, "outcome", outcome, raising=False)
    monkeypatch.setattr(probe.socket, "socket", FakeConnection)
    assert probe.probe_address("127.0.0.1:1", timeout_seconds=FAST) == reason


def test_a_refused_connection_is_reported_rather_than_a_missing_route(held_ports, monkeypatch):
    (port,) = held_ports()

    class NoIpv6(socket.socket):
        def connect(self, address):
            if address == ("127.0.0.2", port):
                raise OSError(errno.ENETUNREACH, "x")
            super().connect(address)

    kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
    found = [(*kind, ("127.0.0.1", port)), (*kind, ("127.0.0.2", port))]
    monkeypatch.setattr(probe.socket, "getaddrinfo", lambda *args, **kwargs: found)
    monkeypatch.setattr(probe.socket, "socket", NoIpv6)
    assert probe.probe_address("two:1", timeout_seconds=FAST) == "connection refused"


def test_the_second_address_of_a_name_is_tried(server, held_ports, monkeypatch):
    (_, port), (closed,) = server(), held_ports()
    kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
    found = [(*kind, ("127.0.0.1", closed)), (*kind, ("127.0.0.1", port))]
    monkeypatch.setattr(probe.socket, "getaddrinfo", lambda *args, **kwargs: found)
    assert probe.probe_address("two:1", timeout_seconds=FAST) is None


def test_a_probe_that_connects_to_itself_is_not_an_answer(held_ports, monkeypatch):
    (port,) = held_ports()
    connected = []

    class SamePort(socket.socket):
        def connect(self, address):
            # The kernel may choose this local port by chance if it is in the ephemeral range.
            self.bind(address)
            super().connect(address)
            connected.append(self.getpeername())

    monkeypatch.setattr(probe.socket, "socket", SamePort)
    assert probe.probe_address(f"127.0.0.1:{port}", timeout_seconds=FAST) == "connection refused"
    assert connected == [("127.0.0.1", port)]
    # After the probe, the task that owns the port can still bind it.
    monkeypatch.undo()
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        owner.bind(("0.0.0.0", port))
        owner.listen()


def test_a_connection_that_stays_open_is_distinguished_from_one_that_is_closed_at_once(server, background):
    opened, port = server()
    address = f"127.0.0.1:{port}"
    assert probe.probe_address(address, timeout_seconds=FAST, must_stay_open=True) is None

    def greet(data):
        connection, _ = opened.accept()
        with connection:
            connection.sendall(data)

    # The connection of the attempt above is still in the queue.
    opened.accept()[0].close()
    opened.settimeout(FAST)
    done = background(greet, b"")
    assert probe.probe_address(address, timeout_seconds=FAST, must_stay_open=True) == "connection refused"
    done.result(FAST)
    done = background(greet, b"settings")
    assert probe.probe_address(address, timeout_seconds=FAST, must_stay_open=True) is None
    done.result(FAST)
