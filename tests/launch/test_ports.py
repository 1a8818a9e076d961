from __future__ import annotations

import socket

import pytest

from tfdist.cluster import Task
from tfdist.cluster.sockets import bind_all_interfaces, can_listen_while_held
from tfdist.launch import ports
from tfdist.launch.ports import PortHold

TASKS = [Task("worker", 0), Task("worker", 1), Task("ps", 0)]


def listen_as_grpc_does(port: int) -> socket.socket:
    sock = bind_all_interfaces(port)
    sock.listen(1)
    return sock


def test_a_task_can_listen_on_its_port_and_be_reached_while_the_port_is_held() -> None:
    assert can_listen_while_held()
    with PortHold(TASKS, host="localhost") as hold:
        hold.release_if_needed()
        for port in hold.ports.values():
            with listen_as_grpc_does(port), socket.create_connection(("localhost", port), timeout=5):
                pass


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_socket_without_reuseaddr_cannot_bind_a_held_port(address: str) -> None:
    with PortHold(TASKS[:1], host="localhost") as hold, socket.socket() as other, pytest.raises(OSError):
        other.bind((address, hold.ports[TASKS[0]]))


def test_the_system_does_not_give_a_held_port_to_a_program_that_asks_for_a_free_one() -> None:
    with PortHold(TASKS, host="localhost") as hold:
        others = [bind_all_interfaces(0) for _ in range(200)]
        given = [other.getsockname()[1] for other in others]
        for other in others:
            other.close()
        assert len({*given, *hold.ports.values()}) == 203


def test_ports_are_free_again_after_the_hold() -> None:
    with PortHold(TASKS, host="localhost") as hold:
        port = hold.ports[TASKS[0]]
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def consecutive_free_ports(count: int) -> int:
    for _ in range(100):
        with bind_all_interfaces(0) as probe:
            base = int(probe.getsockname()[1])
        try:
            with PortHold(TASKS[:count], host="localhost", port_base=base):
                return base
        except ValueError:
            continue
    raise AssertionError("found no consecutive free ports")


def test_a_port_base_gives_consecutive_ports() -> None:
    base = consecutive_free_ports(3)
    with PortHold(TASKS, host="localhost", port_base=base) as hold:
        assert list(hold.ports.values()) == [base, base + 1, base + 2]


def test_a_port_that_another_process_listens_on_is_refused_with_its_task() -> None:
    base = consecutive_free_ports(2)
    with (
        listen_as_grpc_does(base + 1),
        pytest.raises(ValueError, match=rf"port {base + 1} .* worker 1, but it is taken"),
    ):
        PortHold(TASKS, host="localhost", port_base=base)


def test_a_port_that_another_launcher_holds_is_refused() -> None:
    base = consecutive_free_ports(1)
    with (
        PortHold(TASKS[:1], host="localhost", port_base=base),
        pytest.raises(
            ValueError, match=rf"expected port {base} to be free for worker 0, but it is taken; choose another"
        ),
    ):
        PortHold(TASKS[:1], host="localhost", port_base=base)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "."])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"expected --host to be a name or address of this machine, received .*; try"):
        PortHold(TASKS, host=host)


def test_ports_that_cannot_be_shared_are_released_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "can_listen_while_held", lambda: False)
    with PortHold(TASKS[:1], host="localhost") as hold:
        hold.release_if_needed()
        with socket.socket() as other:
            other.bind(("127.0.0.1", hold.ports[TASKS[0]]))
