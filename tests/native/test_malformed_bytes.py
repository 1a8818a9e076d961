"""Bytes that no rank sends, from one that has joined: the others name it, and neither wait nor crash."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.native.ranks import ALL_REDUCE, SECONDS, native_library, start, wait
from tfdist.allreduce.native.communicator import Communicator, Listener

RUN_ID = "r" * 64
MAGIC, FAREWELL, FLOAT32, TAG = 0x74666431, 0xFF, 1, 9
INVALID_ARGUMENT, UNAVAILABLE, DATA_LOSS = 3, 14, 15
ELEMENTS = 10_000
# Rank 0 of two ranks sums the first half.
BYTES = ELEMENTS // 2 * 4


@pytest.fixture(autouse=True, scope="module")
def _library() -> Iterator[None]:
    with native_library():
        yield


@pytest.fixture
def ranks() -> Iterator[tuple[Communicator, socket.socket]]:
    """Rank 0, and the connection of a rank 1 that sends what a test wants."""
    listener = Listener("127.0.0.1", shares_memory=False, run_id=RUN_ID)
    addresses = [f"rank_0 127.0.0.1 {listener.port} - -", "rank_1 127.0.0.1 1 - -"]
    with ThreadPoolExecutor(1) as thread, socket.create_connection(("127.0.0.1", listener.port), SECONDS) as peer:
        connecting = thread.submit(listener.connect, 0, addresses, timeout_seconds=SECONDS)
        peer.sendall(struct.pack("=8sIIII64s", b"tfdist1\0", 1, 1, 0, 2, RUN_ID.encode()))
        assert len(peer.recv(88, socket.MSG_WAITALL)) == 88
        communicator = connecting.result()
        yield communicator, peer
        communicator.close()


def fragment(offset: int, size: int, *, kind: int = ALL_REDUCE) -> bytes:
    header = struct.pack("=IBBHiIQQQQ", MAGIC, kind, 0, 0, FLOAT32, 0, ELEMENTS, TAG, offset, size)
    return header.ljust(64, b"\0") + bytes(size + -size % 64)


def sum_with(communicator: Communicator, peer: socket.socket, sent: bytes, *, ends: bool = False) -> tuple[int, str]:
    """Returns the code and the message of a sum whose summands of rank 1 are these bytes."""
    values, out = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)
    began = time.monotonic()
    number = start(communicator, values, out, kind=ALL_REDUCE, tag=TAG, seconds=SECONDS / 2)
    peer.sendall(sent)
    if ends:
        peer.shutdown(socket.SHUT_WR)
    found = wait(number)
    assert time.monotonic() - began < SECONDS / 4
    return found


@pytest.mark.parametrize(
    "sent",
    [
        # The part would be counted twice, and the sum would end before the other half has come.
        pytest.param(fragment(0, BYTES) + fragment(BYTES, 0), id="an empty fragment after a complete part"),
        pytest.param(fragment(0, 0), id="an empty fragment"),
        pytest.param(fragment(0, 6) + fragment(6, BYTES - 6), id="a part of an element"),
        pytest.param(fragment(4, 4), id="a gap"),
        pytest.param(fragment(0, BYTES + 4), id="too many bytes"),
    ],
)
def test_a_fragment_that_nobody_expects_is_refused(ranks, sent):
    code, message = sum_with(*ranks, sent)
    assert code == UNAVAILABLE
    assert message == "lost rank 1: it sent a fragment that nobody expects"


@pytest.mark.parametrize("sent", [fragment(0, 500, kind=FAREWELL)[:300], fragment(0, 0, kind=FAREWELL)])
def test_a_rank_whose_farewell_is_cut_off_or_empty_is_named(ranks, sent):
    code, message = sum_with(*ranks, sent, ends=True)
    assert code == UNAVAILABLE
    assert message == "lost rank 1: its connection ended"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, UNAVAILABLE), (17, UNAVAILABLE), (255, UNAVAILABLE), (3, INVALID_ARGUMENT), (15, DATA_LOSS)],
)
def test_a_farewell_is_an_error_whatever_its_code(ranks, code, expected):
    text = bytes([code]) + b"the reason"
    sent = fragment(0, len(text), kind=FAREWELL)[:64] + text.ljust(64, b"\0")
    assert sum_with(*ranks, sent) == (expected, "the reason")
