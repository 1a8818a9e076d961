"""Bytes that a network interface has sent, from the kernel's counters, and the rate of plain TCP streams."""

from __future__ import annotations

import concurrent.futures
import ipaddress
import socket
import time
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60.0


def interface_of(address: str) -> str:
    """Returns the name of the network interface that has an address.

    Args:
        address: an IP address or host name of this machine.

    Raises:
        ValueError: if no interface has the address.

    Example:
        >>> from tfdist.bench.wire import interface_of
        >>> interface_of("127.0.0.1")
        'lo'
    """
    import psutil

    try:
        wanted = {str(info[4][0]) for info in socket.getaddrinfo(address, None)}
    except OSError:
        wanted = set()
    # The loopback interface has all of 127.0.0.0/8, and psutil lists only one address of it.
    if any(ipaddress.ip_address(ip).is_loopback for ip in wanted):
        return "lo"
    for name, own_addresses in psutil.net_if_addrs().items():
        if any(own.address.partition("%")[0] in wanted for own in own_addresses):
            return name
    raise ValueError(
        f"expected an address of a network interface of this machine, received {address}; "
        "use an address that `ip address` lists."
    )


def bytes_sent(interface: str) -> int:
    """Returns how many bytes a network interface has sent since it was started, including headers.

    Args:
        interface: name of the interface, such as "eth0".

    Raises:
        ValueError: if the machine has no such interface.
    """
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            return int(numbers.split()[8])
    raise ValueError(f"expected a network interface that /proc/net/dev lists, received {interface!r}.")


class StreamRate:
    """Measures the rate of plain TCP streams around the ring of workers: each worker sends to the next.

    Args:
        host: address of this worker, on which a free port is opened.
    """

    def __init__(self, host: str) -> None:
        self._server = socket.create_server((host, 0))
        self._server.settimeout(_TIMEOUT_SECONDS)

    @property
    def port(self) -> int:
        """The port on which this worker listens."""
        return int(self._server.getsockname()[1])

    def measure(self, host: str, port: int, *, size: int) -> float:
        """Sends to the next worker while receiving from the previous worker; returns bytes per second.

        Args:
            host: address of the next worker.
            port: port on which the next worker listens.
            size: number of bytes to send, the same on every worker.
        """
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            transfers = [pool.submit(self._receive, size), pool.submit(self._send, host, port, size)]
            for transfer in transfers:
                transfer.result()
        return size / (time.perf_counter() - begin)

    def _receive(self, size: int) -> None:
        connection, _ = self._server.accept()
        with connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            buffer = bytearray(_CHUNK_BYTES)
            while size > 0:
                count = connection.recv_into(buffer)
                if not count:
                    raise ConnectionError(
                        f"expected {size:,} more bytes from the previous worker, received the end of the stream."
                    )
                size -= count

    @staticmethod
    def _send(host: str, port: int, size: int) -> None:
        with socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS) as connection:
            chunk = bytes(_CHUNK_BYTES)
            while size > 0:
                count = min(size, _CHUNK_BYTES)
                connection.sendall(chunk[:count])
                size -= count
