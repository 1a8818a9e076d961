"""One attempt to reach one address by TCP, in bounded time."""

from __future__ import annotations

import errno
import os
import socket
import time

from tfdist.cluster.address import split_address

REFUSED = "connection refused"
UNRESOLVED = "name does not resolve"
SILENT = "no reply"
UNROUTED = "no route to host"

# A server that keeps its connections says nothing or greets; one that only shows it is there closes at once.
_CLOSE_SECONDS = 0.25


def attempt(address: str, *, timeout_seconds: float, must_stay_open: bool = False) -> str | None:
    """Connects once and returns None if somebody listens, else the reason in a few words.

    Args:
        address: the `host:port` to connect to.
        timeout_seconds: for all addresses of the host together; the name look-up comes before and is bounded only by
            the resolver of the system, so call this from a thread where that counts.
        must_stay_open: whether a server that closes the connection at once, as wait_for_peers does, is no answer.

    Example:
        >>> import socket
        >>> with socket.create_server(("127.0.0.1", 0)) as server:
        ...     attempt(f"127.0.0.1:{server.getsockname()[1]}", timeout_seconds=5.0)
    """
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        # UnicodeError: a label that the encoding of international names refuses, such as an empty one.
        return UNRESOLVED
    deadline = time.monotonic() + timeout_seconds
    reasons: list[str] = []
    for family, kind, protocol, _, target in found:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            reasons.append(SILENT)
            break
        reason = _connect(family, kind, protocol, target, remaining, must_stay_open)
        if reason is None:
            return None
        reasons.append(reason)
    # localhost is two addresses: that nobody listens on one says more than that the other family is switched off.
    return REFUSED if REFUSED in reasons else reasons[-1] if reasons else UNRESOLVED


def _connect(
    family: int, kind: int, protocol: int, target: object, timeout_seconds: float, must_stay_open: bool
) -> str | None:
    try:
        with socket.socket(family, kind, protocol) as connection:
            # The local port of this connection lingers in TIME_WAIT; with this option set, a task of this machine
            # whose own port it happens to be can bind it all the same.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            connection.settimeout(timeout_seconds)
            connection.connect(target)  # type: ignore[arg-type]
            if is_self_connected(connection):
                return REFUSED
            if must_stay_open and _closes_at_once(connection):
                return REFUSED
            return None
    except ConnectionRefusedError:
        return REFUSED
    except ConnectionResetError:
        # Only an established connection is reset: somebody listens.
        return REFUSED if must_stay_open else None
    except TimeoutError:
        return SILENT
    except OSError as error:
        if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return UNROUTED
        return os.strerror(error.errno).lower() if error.errno else str(error)


def is_self_connected(connection: socket.socket) -> bool:
    """Whether a connection leads to itself.

    Linux may give a connection to a local port that nobody listens on that very port as its own; TCP then completes
    the handshake of the socket with itself (simultaneous open, RFC 9293 section 3.5), and nobody has answered.

    Example:
        >>> import socket
        >>> with socket.socket() as lonely:
        ...     lonely.bind(("127.0.0.1", 0))
        ...     lonely.connect(lonely.getsockname())
        ...     is_self_connected(lonely)
        True
    """
    return bool(connection.getsockname() == connection.getpeername())


def _closes_at_once(connection: socket.socket) -> bool:
    connection.settimeout(_CLOSE_SECONDS)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
