from __future__ import annotations

import socket

import pytest

from tfdist.launch import ports
from tfdist.launch.ports import PortHold, bind_everywhere, can_listen_while_held
from tfdist.launch.spec import Rank

RANKS = [Rank("worker", 0), Rank("worker", 1), Rank("ps", 0)]


def listen_as_grpc_does(port: int) -> socket.socket:
    sock = bind_everywhere(port)
    sock.listen(1)
    return sock


def test_a_rank_can_listen_on_its_port_and_be_reached_while_the_port_is_held() -> None:
    assert can_listen_while_held()
    with PortHold(RANKS, host="localhost") as hold:
        hold.release_if_needed()
        for port in hold.ports.values():
            with listen_as_grpc_does(port), socket.create_connection(("localhost", port), timeout=5):
                pass


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_nobody_who_does_not_share_can_take_a_held_port(address: str) -> None:
    with PortHold(RANKS[:1], host="localhost") as hold, socket.socket() as other, pytest.raises(OSError):
        other.bind((address, hold.ports[RANKS[0]]))


def test_the_system_gives_a_held_port_to_nobody_who_asks_for_a_free_one() -> None:
    with PortHold(RANKS, host="localhost") as hold:
        others = [bind_everywhere(0) for _ in range(200)]
        given = [other.getsockname()[1] for other in others]
        for other in others:
            other.close()
        assert len({*given, *hold.ports.values()}) == 203


def test_ports_are_free_again_after_the_hold() -> None:
    with PortHold(RANKS, host="localhost") as hold:
        port = hold.ports[RANKS[0]]
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def consecutive_free_ports(count: int) -> int:
    for _ in range(100):
        with bind_everywhere(0) as probe:
            base = int(probe.getsockname()[1])
        try:
            with PortHold(RANKS[:count], host="localhost", port_base=base):
                return base
        except ValueError:
            continue
    raise AssertionError("found no consecutive free ports")


def test_a_port_base_gives_consecutive_ports() -> None:
    base = consecutive_free_ports(3)
    with PortHold(RANKS, host="localhost", port_base=base) as hold:
        assert list(hold.ports.values()) == [base, base + 1, base + 2]


def test_a_port_that_somebody_listens_on_is_refused_with_its_rank() -> None:
    base = consecutive_free_ports(2)
    with (
        listen_as_grpc_does(base + 1),
        pytest.raises(ValueError, match=rf"port {base + 1} .* worker 1, but it is taken"),
    ):
        PortHold(RANKS, host="localhost", port_base=base)


def test_a_port_that_another_launcher_holds_is_refused() -> None:
    base = consecutive_free_ports(1)
    with (
        PortHold(RANKS[:1], host="localhost", port_base=base),
        pytest.raises(
            ValueError, match=rf"expected port {base} to be free for worker 0, but it is taken; choose another"
        ),
    ):
        PortHold(RANKS[:1], host="localhost", port_base=base)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "."])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"expected --host to be a name or address of this machine, received .*; try"):
        PortHold(RANKS, host=host)


def test_ports_are_released_before_the_start_where_they_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "can_listen_while_held", lambda: False)
    with PortHold(RANKS[:1], host="localhost") as hold:
        hold.release_if_needed()
        with socket.socket() as other:
            other.bind(("127.0.0.1", hold.ports[RANKS[0]]))


def test_a_machine_without_ipv6_uses_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int = socket.AF_INET, *args: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError("Address family not supported by protocol")
        return real(family, *args)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with bind_everywhere(0) as sock:
        assert sock.family == socket.AF_INET
