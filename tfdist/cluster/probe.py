"""Makes one attempt to connect to an address by TCP, in bounded time, and waits for a reply of the process there."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import NamedTuple

from tfdist.cluster.address import split_address
from tfdist.cluster.greeting import PREFIX, Greeting, read_line

REFUSED = "connection refused"
UNRESOLVED = "name does not resolve"
NO_REPLY = "no reply"
NO_ROUTE = "no route to host"
CLOSED = "connection closed without a reply"
# The kernel accepts connections for a process that is stopped, so an open connection does not show a running process.
SILENT = "the process accepts connections but does not reply"


class Answer(NamedTuple):
    """What one attempt to connect has found.

    Args:
        reason: why no task answers there, in a few words; None if a task answers.
        serves: whether TensorFlow's server answers, rather than a task in wait_for_peers.
        task_name: the name that a task in wait_for_peers has sent; None if none was sent.
        incarnation: the incarnation that a task in wait_for_peers has sent; None if none was sent.

    Example:
        >>> Answer(None, serves=True)
        Answer(reason=None, serves=True, task_name=None, incarnation=None)
    """

    reason: str | None
    serves: bool = False
    task_name: str | None = None
    incarnation: str | None = None


def probe(address: str, *, timeout_seconds: float) -> Answer:
    """Connects once and returns what answers there.

    TensorFlow's server and a task in wait_for_peers both send bytes as soon as a connection is open.

    Args:
        address: the `host:port` to connect to.
        timeout_seconds: the time limit for all addresses that the host name resolves to. The limit does not include
            the name look-up, whose time only the system's resolver limits; call this function from a thread if the
            caller must not wait for the look-up.

    Example:
        >>> probe("a..b:2222", timeout_seconds=5.0).reason
        'name does not resolve'
    """
    host, port = split_address(address)
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        # UnicodeError: the encoding of international names refuses some labels, such as an empty label.
        return Answer(UNRESOLVED)
    deadline = time.monotonic() + timeout_seconds
    reasons: list[str] = []
    for family, kind, protocol, _, target in resolved:
        if deadline <= time.monotonic():
            reasons.append(NO_REPLY)
            break
        answer = _connect(family, kind, protocol, target, deadline)
        if answer.reason is None:
            return answer
        reasons.append(answer.reason)
    # localhost resolves to an IPv6 and an IPv4 address. If one address family is switched off, its error explains less
    # than the outcome at the other address.
    telling = [reason for reason in (SILENT, REFUSED) if reason in reasons]
    return Answer(telling[0] if telling else reasons[-1] if reasons else UNRESOLVED)


def probe_address(address: str, *, timeout_seconds: float, must_serve: bool = False) -> str | None:
    """Connects once and returns None if a task answers, else the reason in a few words.

    Args:
        address: the `host:port` to connect to.
        timeout_seconds: the time limit, as in `probe`.
        must_serve: whether a task in wait_for_peers counts as a task that refuses the connection.

    Example:
        >>> probe_address("a..b:2222", timeout_seconds=5.0)
        'name does not resolve'
    """
    answer = probe(address, timeout_seconds=timeout_seconds)
    return REFUSED if must_serve and answer.reason is None and not answer.serves else answer.reason


def _connect(family: int, kind: int, protocol: int, target: object, deadline: float) -> Answer:
    try:
        with socket.socket(family, kind, protocol) as connection:
            # The local port of this connection stays in TIME_WAIT for a while. If a task on this machine uses the same
            # port number, this option lets the task bind the port during this time.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            connection.settimeout(_until(deadline))
            connection.connect(target)  # type: ignore[arg-type]
            if is_self_connected(connection):
                return Answer(REFUSED)
            connection.settimeout(_until(deadline))
            return _read_answer(connection)
    except ConnectionRefusedError:
        return Answer(REFUSED)
    except ConnectionResetError:
        # The process has ended, or it closed its port just now to start TensorFlow's server.
        return Answer(CLOSED)
    except TimeoutError:
        return Answer(NO_REPLY)
    except OSError as error:
        if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return Answer(NO_ROUTE)
        return Answer(os.strerror(error.errno).lower() if error.errno else str(error))


def _read_answer(connection: socket.socket) -> Answer:
    try:
        data = read_line(connection)
    except TimeoutError:
        return Answer(SILENT)
    greeting = Greeting.from_bytes(data)
    if greeting is not None:
        return Answer(None, task_name=greeting.task_name, incarnation=greeting.incarnation)
    return Answer(None, serves=True) if data and not data.startswith(PREFIX) else Answer(CLOSED)


def _until(deadline: float) -> float:
    # A timeout of 0 would make the socket non-blocking.
    return max(0.001, deadline - time.monotonic())


def is_self_connected(connection: socket.socket) -> bool:
    """Returns whether both ends of a connection are the same socket.

    On Linux, a connection to a local port on which no server listens may get the same port as its own local port. The
    socket then completes the TCP handshake with itself (simultaneous open, RFC 9293 section 3.5), although no server
    has answered.

    Example:
        >>> import socket
        >>> with socket.socket() as own:
        ...     own.bind(("127.0.0.1", 0))
        ...     own.connect(own.getsockname())
        ...     is_self_connected(own)
        True
    """
    return bool(connection.getsockname() == connection.getpeername())
