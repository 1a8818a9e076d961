from __future__ import annotations

import errno
import pickle
import socket

import pytest

from tfdist.cluster import PortInUseError, sockets
from tfdist.cluster.sockets import bind_all_interfaces, listen_on_own_port


def reaches(host, port):
    with socket_for(host) as connection:
        connection.settimeout(5.0)
        return connection.connect_ex((host, port)) == 0


def socket_for(host):
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


def test_peers_reach_the_port_by_ipv6_and_ipv4(held_ports):
    (port,) = held_ports()
    with listen_on_own_port(f"localhost:{port}", task_name="worker 0"):
        assert reaches("127.0.0.1", port)
        assert reaches("::1", port) == has_ipv6()


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_on_a_machine_without_ipv6_a_task_listens_on_ipv4(held_ports, monkeypatch, number):
    (port,) = held_ports()

    class Ipv4Only(socket.socket):
        def bind(self, address):
            if self.family == socket.AF_INET6:
                raise OSError(number, "no IPv6")
            super().bind(address)

    monkeypatch.setattr(sockets.socket, "socket", Ipv4Only)
    with listen_on_own_port(f"localhost:{port}", task_name="worker 0") as opened:
        assert opened.family == socket.AF_INET
        assert reaches("127.0.0.1", port)


def test_a_machine_whose_kernel_lacks_ipv6_binds_ipv4(monkeypatch):
    real = socket.socket

    def without_ipv6(family=socket.AF_INET, *args):
        if family == socket.AF_INET6:
            raise OSError("Address family not supported by protocol")
        return real(family, *args)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with bind_all_interfaces(0) as bound:
        assert bound.family == socket.AF_INET
        assert bound.getsockname()[0] == "0.0.0.0"


@pytest.mark.parametrize("port_choice", ["free", "given"])
def test_a_bound_port_does_not_listen_and_may_be_bound_and_listened_on_again(held_ports, port_choice):
    with bind_all_interfaces(0 if port_choice == "free" else held_ports()[0]) as bound:
        port = bound.getsockname()[1]
        assert not reaches("127.0.0.1", port)
        with listen_on_own_port(f"localhost:{port}", task_name="worker 0"):
            assert reaches("127.0.0.1", port)


def test_a_port_that_another_process_listens_on_is_not_bound():
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError) as caught:
        bind_all_interfaces(other.getsockname()[1])
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("launcher_host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_a_launcher_holds_without_listening_is_free(launcher_host):
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((launcher_host, 0))
        port = holder.getsockname()[1]
        with listen_on_own_port(f"localhost:{port}", task_name="worker 0"):
            assert reaches("127.0.0.1", port)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_somebody_listens_on_is_refused(host):
    with socket.create_server((host, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortInUseError) as caught:
            listen_on_own_port(f"localhost:{port}", task_name="worker 0")
    assert str(caught.value) == (
        f"worker 0 expected port {port} to be free for its own address localhost:{port}, "
        "received 'Address already in use'; stop the process that holds it or choose another port."
    )
    assert caught.value.errno == errno.EADDRINUSE
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.errno) == (str(caught.value), errno.EADDRINUSE)


def test_a_port_that_the_process_may_not_use_is_refused(monkeypatch):
    class Forbidden(socket.socket):
        def bind(self, address):
            raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(sockets.socket, "socket", Forbidden)
    with pytest.raises(PermissionError, match=r"received 'Permission denied'; choose a port that this process may"):
        listen_on_own_port("localhost:80", task_name="chief 0")


def test_the_port_is_free_again_at_once(held_ports):
    (port,) = held_ports()
    for _ in range(3):
        with listen_on_own_port(f"localhost:{port}", task_name="worker 0") as opened:
            assert reaches("127.0.0.1", port)
            # The side that closes first keeps the port in TIME_WAIT.
            opened.accept()[0].close()
