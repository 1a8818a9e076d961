"""Chooses a port for each task, and keeps other programs from taking it before the task listens on it."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence
from types import TracebackType

from tfdist.cluster import Task
from tfdist.cluster.sockets import bind_all_interfaces, can_listen_while_held


class PortHold:
    """Holds one port for each task, with sockets that are bound and never listen.

    gRPC binds its port on all interfaces with SO_REUSEADDR. On Linux, such a listener can share the port with a socket
    that is bound with SO_REUSEADDR and does not listen, but a program that asks for any free port does not get this
    port. The ports are therefore held until the run ends. On a system where ports cannot be shared, `release_if_needed`
    releases them before the start.

    Args:
        tasks: the tasks that get a port.
        host: the address at which the tasks will be reached; it must belong to this machine.
        port_base: the first of consecutive ports; None chooses free ports.

    Raises:
        ValueError: if the host is not this machine, or a port from `port_base` on is taken.

    Example:
        >>> with PortHold([Task("worker", 0)], host="localhost") as hold:
        ...     [task.name for task, port in hold.ports.items() if port > 1023]
        ['worker 0']
    """

    def __init__(self, tasks: Sequence[Task], *, host: str, port_base: int | None = None) -> None:
        self._sockets: list[socket.socket] = []
        self.ports: dict[Task, int] = {}
        check_host(host)
        try:
            for number, task in enumerate(tasks):
                self.ports[task] = self._hold(task, 0 if port_base is None else port_base + number)
        except BaseException:
            self.close()
            raise

    def _hold(self, task: Task, port: int) -> int:
        try:
            if port:
                self._sockets += _lock_against_launchers(port)
            self._sockets.append(bind_all_interfaces(port))
        except OSError as error:
            if not port:
                raise
            why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be bound ({error.strerror})"
            raise ValueError(
                f"expected port {port} to be free for {task.name}, but it {why}; "
                "choose another --port-base or leave it out."
            ) from None
        return int(self._sockets[-1].getsockname()[1])

    def release_if_needed(self) -> None:
        """Releases the ports if this system does not let a task listen on a held port."""
        if self._sockets and not can_listen_while_held():
            self.close()

    def close(self) -> None:
        """Releases the ports."""
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
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (OSError, UnicodeError):
        raise ValueError(
            f"expected --host to be a name or address of this machine, received {host!r}; try localhost."
        ) from None


def _lock_against_launchers(port: int) -> list[socket.socket]:
    """Returns a lock on a port as a list of at most one socket; raises OSError if another launcher has the lock.

    Two launchers that bind the same port do not notice each other, as neither listens. A name in Linux's abstract
    namespace of sockets is exclusive, belongs to the same network namespace as the port, and is released when the
    process ends.
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
