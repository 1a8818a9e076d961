"""Ports that are free, and stay so until the ranks listen on them."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence
from types import TracebackType

from tfdist.launch.spec import Rank


class PortHold:
    """Holds one port per rank by sockets that are bound and never listen.

    gRPC binds its port on all addresses with SO_REUSEADDR. Linux lets such a listener share the port with a socket that
    is merely bound with SO_REUSEADDR too, while it gives the port to nobody who asks for a free one. So the ports are
    held for the life of the job. Where the system doesn't do this, `release_if_needed` gives them up before the start.

    Args:
        ranks: The ranks that get a port.
        host: The address that the ranks will be reached at; it must be one of this machine.
        port_base: The first of consecutive ports, None for free ones.

    Raises:
        ValueError: If the host is not this machine, or a port from `port_base` on is taken.

    Example:
        >>> with PortHold([Rank("worker", 0)], host="localhost") as hold:
        ...     [rank.label for rank, port in hold.ports.items() if port > 1023]
        ['worker 0']
    """

    def __init__(self, ranks: Sequence[Rank], *, host: str, port_base: int | None = None) -> None:
        self._sockets: list[socket.socket] = []
        self.ports: dict[Rank, int] = {}
        check_host(host)
        try:
            for number, rank in enumerate(ranks):
                self.ports[rank] = self._hold(rank, 0 if port_base is None else port_base + number)
        except BaseException:
            self.close()
            raise

    def _hold(self, rank: Rank, port: int) -> int:
        try:
            if port:
                self._sockets += _claim(port)
            self._sockets.append(bind_everywhere(port))
        except OSError as error:
            if not port:
                raise
            why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be bound ({error.strerror})"
            raise ValueError(
                f"expected port {port} to be free for {rank.label}, but it {why}; "
                "choose another --port-base or leave it out."
            ) from None
        return int(self._sockets[-1].getsockname()[1])

    def release_if_needed(self) -> None:
        """Gives the ports up if this system lets nobody listen on a port that is held."""
        if self._sockets and not can_listen_while_held():
            self.close()

    def close(self) -> None:
        """Gives the ports up."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> PortHold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_host(host: str) -> None:
    """Raises ValueError unless a server on this machine can be reached at `host`."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
    except (OSError, UnicodeError):
        raise ValueError(
            f"expected --host to be a name or address of this machine, received {host!r}; try localhost."
        ) from None


def bind_everywhere(port: int) -> socket.socket:
    """Returns a socket bound to a port (0: a free one) on all addresses as gRPC does, both IPv6 and IPv4 if it can."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0", port)
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _bound(sock, "::", port)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0", port)


def can_listen_while_held() -> bool:
    """Returns whether this system lets a listener with SO_REUSEADDR share a port that is merely bound."""
    with bind_everywhere(0) as holder:
        try:
            with bind_everywhere(holder.getsockname()[1]) as listener:
                listener.listen(1)
        except OSError:
            return False
    return True


def _bound(sock: socket.socket, host: str, port: int) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _claim(port: int) -> list[socket.socket]:
    """Returns what marks a port as held; raises OSError if another launcher holds it.

    Two launchers that hold the same port wouldn't see each other, as neither listens. A name in Linux's abstract
    namespace is exclusive, lives in the same network namespace as the port, and goes away with the process.
    """
    if not sys.platform.startswith("linux"):
        return []
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0tfdist-launch-port-{port}")
    except BaseException:
        lock.close()
        raise
    return [lock]
