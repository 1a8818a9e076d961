"""Makes one attempt to connect to an address by TCP, in bounded time."""

from __future__ import annotations

import errno
import os
import socket
import time

from tfdist.cluster.address import split_address

REFUSED = "connection refused"
UNRESOLVED = "name does not resolve"
NO_REPLY = "no reply"
NO_ROUTE = "no route to host"

# How long a connection is watched: TensorFlow's server keeps it open, and wait_for_peers closes it at once.
_CLOSE_SECONDS = 0.25


def probe_address(address: str, *, timeout_seconds: float, must_stay_open: bool = False) -> str | None:
    """Connects once and returns None if a server answers, else the reason in a few words.

    Args:
        address: the `host:port` to connect to.
        timeout_seconds: the time limit for all addresses that the host name resolves to. The limit does not include
            the name look-up, whose time only the system's resolver limits; call this function from a thread if the
            caller must not wait for the look-up.
        must_stay_open: whether a server that closes the connection at once, as wait_for_peers does, counts as a server
            that refuses the connection.

    Example:
        >>> import socket
        >>> with socket.create_server(("127.0.0.1", 0)) as server:
        ...     probe_address(f"127.0.0.1:{server.getsockname()[1]}", timeout_seconds=5.0) is None
        True
        >>> probe_address("a..b:2222", timeout_seconds=5.0)
        'name does not resolve'
    """
    host, port = split_address(address)
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        # UnicodeError: the encoding of international names refuses some labels, such as an empty label.
        return UNRESOLVED
    deadline = time.monotonic() + timeout_seconds
    reasons: list[str] = []
    for family, kind, protocol, _, target in resolved:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            reasons.append(NO_REPLY)
            break
        reason = _connect(family, kind, protocol, target, remaining, must_stay_open)
        if reason is None:
            return None
        reasons.append(reason)
    # localhost resolves to an IPv6 and an IPv4 address. If one address family is switched off, its error explains less
    # than a refusal at the other address.
    return REFUSED if REFUSED in reasons else reasons[-1] if reasons else UNRESOLVED


def _connect(
    family: int, kind: int, protocol: int, target: object, timeout_seconds: float, must_stay_open: bool
) -> str | None:
    try:
        with socket.socket(family, kind, protocol) as connection:
            # The local port of this connection stays in TIME_WAIT for a while. If a task on this machine uses the same
            # port number, this option lets the task bind the port during this time.
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
        # Only an established connection is reset, so a server listens.
        return REFUSED if must_stay_open else None
    except TimeoutError:
        return NO_REPLY
    except OSError as error:
        if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return NO_ROUTE
        return os.strerror(error.errno).lower() if error.errno else str(error)


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


def _closes_at_once(connection: socket.socket) -> bool:
    connection.settimeout(_CLOSE_SECONDS)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
