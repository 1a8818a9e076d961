from __future__ import annotations

import errno
import socket

import pytest

from tfdist.cluster import probe

from .conftest import SETTINGS

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
        (ConnectionResetError(errno.ECONNRESET, "x"), "connection closed without a reply"),
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


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (SETTINGS, probe.Answer(None, serves=True)),
        (b"tfdist worker 12\n", probe.Answer(None, task_name="worker 12")),
        (b"", probe.Answer("connection closed without a reply")),
        (b"tfdist worker", probe.Answer("connection closed without a reply")),
    ],
)
def test_servers_are_distinguished_from_tasks_that_wait(silent_server, background, sent, answer):
    opened, port = silent_server()
    opened.settimeout(FAST)

    def greet():
        for _ in range(3):
            connection, _ = opened.accept()
            with connection:
                # Two writes, since a line may come in two parts.
                connection.sendall(sent[:5])
                connection.sendall(sent[5:])

    done = background(greet)
    address = f"127.0.0.1:{port}"
    assert probe.probe(address, timeout_seconds=FAST) == answer
    assert probe.probe_address(address, timeout_seconds=FAST) == answer.reason
    served = probe.probe_address(address, timeout_seconds=FAST, must_serve=True)
    assert (served is None) == answer.serves
    done.result(FAST)


def test_a_process_that_accepts_connections_and_sends_nothing_does_not_answer(silent_server):
    _, port = silent_server()
    reason = "the process accepts connections but does not reply"
    assert probe.probe_address(f"127.0.0.1:{port}", timeout_seconds=0.05) == reason
    assert probe.probe_address(f"127.0.0.1:{port}", timeout_seconds=0.05, must_serve=True) == reason


def test_a_line_without_end_is_not_read_for_ever(silent_server, background):
    opened, port = silent_server()

    def flood():
        with opened.accept()[0] as connection:
            connection.sendall(b"tfdist " + b"x" * 10_000)

    done = background(flood)
    answer = probe.probe(f"127.0.0.1:{port}", timeout_seconds=FAST)
    assert answer == probe.Answer("connection closed without a reply")
    done.result(FAST)
