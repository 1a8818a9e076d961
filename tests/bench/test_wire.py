from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfdist.bench.wire import StreamRate, bytes_sent, interface_of


def test_the_loopback_interface_counts():
    before = bytes_sent(interface_of("localhost"))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(bytes(100_000))
    assert bytes_sent(interface_of("127.0.0.1")) >= before + 100_000


def test_an_unknown_interface_is_refused():
    message = r"^expected a network interface that /proc/net/dev lists, received 'none-such'\.$"
    with pytest.raises(ValueError, match=message):
        bytes_sent("none-such")


@pytest.mark.parametrize("address", ["192.0.2.7", "none-such.invalid"])
def test_an_address_of_another_machine_is_refused(address):
    message = f"^expected an address of a network interface of this machine, received {address}; use an address"
    with pytest.raises(ValueError, match=message):
        interface_of(address)


def test_every_worker_of_a_ring_sends_and_receives_all_bytes():
    size, streams = 3_000_000, [StreamRate("127.0.0.1") for _ in range(3)]
    before = bytes_sent("lo")
    with ThreadPoolExecutor(3) as pool:
        rates = [
            pool.submit(stream.measure, "127.0.0.1", following.port, size=size)
            for stream, following in zip(streams, [*streams[1:], streams[0]], strict=True)
        ]
        assert all(rate.result() > 0 for rate in rates)
    assert bytes_sent("lo") >= before + 3 * size


def test_a_stream_that_ends_early_is_an_error():
    receiver = StreamRate("127.0.0.1")
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receiver._receive, 1000)
        with socket.create_connection(("127.0.0.1", receiver.port)) as connection:
            connection.sendall(bytes(400))
        with pytest.raises(ConnectionError, match=r"^expected 600 more bytes from the previous worker"):
            received.result()
