from __future__ import annotations

import errno
import pickle
import socket

import pytest

from tfdist.cluster import PortInUseError, listener


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


def test_both_families_reach_it(held_ports):
    (port,) = held_ports()
    with listener.listen(f"localhost:{port}", task_name="worker 0"):
        assert reaches("127.0.0.1", port)
        assert reaches("::1", port) == has_ipv6()


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_machine_without_ipv6(held_ports, monkeypatch, number):
    (port,) = held_ports()

    class Ipv4Only(socket.socket):
        def bind(self, address):
            if self.family == socket.AF_INET6:
                raise OSError(number, "no IPv6")
            super().bind(address)

    monkeypatch.setattr(listener.socket, "socket", Ipv4Only)
    with listener.listen(f"localhost:{port}", task_name="worker 0") as opened:
        assert opened.family == socket.AF_INET
        assert reaches("127.0.0.1", port)


@pytest.mark.parametrize("launcher_host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_a_launcher_holds_without_listening_is_free(launcher_host):
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((launcher_host, 0))
        port = holder.getsockname()[1]
        with listener.listen(f"localhost:{port}", task_name="worker 0"):
            assert reaches("127.0.0.1", port)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_somebody_listens_on_is_refused(host):
    with socket.create_server((host, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortInUseError) as caught:
            listener.listen(f"localhost:{port}", task_name="worker 0")
    assert str(caught.value) == (
        f"worker 0 expected port {port} to be free for its own address localhost:{port}, "
        "received 'Address already in use'; stop the process that holds it or choose another port."
    )
    assert caught.value.errno == errno.EADDRINUSE
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.errno) == (str(caught.value), errno.EADDRINUSE)


def test_a_port_without_the_right_to_it_is_refused(monkeypatch):
    class Forbidden(socket.socket):
        def bind(self, address):
            raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(listener.socket, "socket", Forbidden)
    with pytest.raises(PermissionError, match=r"received 'Permission denied'; choose a port that this process may"):
        listener.listen("localhost:80", task_name="chief 0")


def test_the_port_is_free_again_at_once(held_ports):
    (port,) = held_ports()
    for _ in range(3):
        with listener.listen(f"localhost:{port}", task_name="worker 0") as opened:
            assert reaches("127.0.0.1", port)
            # The side that closes first keeps the port in TIME_WAIT.
            opened.accept()[0].close()
