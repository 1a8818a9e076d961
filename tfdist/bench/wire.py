"""What went over a network interface, and how fast it can go: the kernel's counters, and a plain TCP stream."""

from __future__ import annotations

import concurrent.futures
import ipaddress
import socket
import time
from pathlib import Path

_CHUNK = 1 << 20


def interface_of(address: str) -> str:
    """Returns the name of the interface that has an address.

    Args:
        address: an IP address or host name of this machine.

    Raises:
        ValueError: if no interface has it.

    Example:
        >>> from tfdist.bench.wire import interface_of
        >>> interface_of("127.0.0.1")
        'lo'
    """
    import psutil

    try:
        wanted = {str(found[4][0]) for found in socket.getaddrinfo(address, None)}
    except OSError:
        wanted = set()
    # The whole of 127.0.0.0/8 is there, not only the address that is listed.
    if any(ipaddress.ip_address(one).is_loopback for one in wanted):
        return "lo"
    for name, held in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] in wanted for one in held):
            return name
    raise ValueError(f"expected an address of this machine, received {address}; name one that an interface has.")


def bytes_sent(interface: str) -> int:
    """Returns what an interface has sent since it came up, headers and all.

    Args:
        interface: its name, such as "eth0".
    """
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            return int(numbers.split()[8])
    raise ValueError(f"expected an interface of this machine, received {interface!r}; see /proc/net/dev.")


class StreamRate:
    """Measures how fast plain TCP streams go round a ring of workers.

    Args:
        host: own address, to listen at a free port.
    """

    def __init__(self, host: str) -> None:
        self._server = socket.create_server((host, 0))
        self._server.settimeout(60.0)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.getsockname()[1])

    def measure(self, host: str, port: int, *, size: int) -> float:
        """Sends to the next worker while it receives from the one before; returns bytes a second.

        Args:
            host: of the next worker.
            port: where that one listens.
            size: bytes to send, the same on every worker.
        """
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            both = [pool.submit(self._receive, size), pool.submit(self._send, host, port, size)]
            for one in both:
                one.result()
        return size / (time.perf_counter() - begin)

    def _receive(self, size: int) -> None:
        connection, _ = self._server.accept()
        with connection:
            connection.settimeout(60.0)
            buffer = bytearray(_CHUNK)
            while size > 0:
                count = connection.recv_into(buffer)
                if not count:
                    raise ConnectionError(f"expected {size:,} bytes more of the worker before, received the end")
                size -= count

    @staticmethod
    def _send(host: str, port: int, size: int) -> None:
        with socket.create_connection((host, port), timeout=60.0) as connection:
            chunk = bytes(_CHUNK)
            while size > 0:
                count = min(size, _CHUNK)
                connection.sendall(chunk[:count])
                size -= count
