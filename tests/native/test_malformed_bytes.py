"""Bytes that no rank sends, from one that has joined: the others name it, and neither wait nor crash."""

from __future__ import annotations

import dataclasses
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from tests.native.ranks import (
    ALL_REDUCE,
    GREETING,
    LIFELINE,
    SECONDS,
    STREAM,
    greeted,
    native_library,
    start,
    wait,
)
from tfdist.allreduce.native.communicator import Communicator, Listener

RUN_ID = "r" * 64
MAGIC, FLOAT32, TAG = 0x74666431, 1, 9
INVALID_ARGUMENT, UNAVAILABLE, DATA_LOSS = 3, 14, 15
ELEMENTS = 10_000
# Rank 0 of two ranks sums the first half.
BYTES = ELEMENTS // 2 * 4


@pytest.fixture(autouse=True, scope="module")
def _library() -> Iterator[None]:
    with native_library():
        yield


@dataclasses.dataclass(frozen=True)
class Ranks:
    """Rank 0, and the connections of a rank 1 that sends what a test wants."""

    communicator: Communicator
    lifeline: socket.socket
    stream: socket.socket


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    listener = Listener("127.0.0.1", shares_memory=False, run_id=RUN_ID)
    addresses = [f"rank_0 127.0.0.1 {listener.port} - -", "rank_1 127.0.0.1 1 - -"]
    with ExitStack() as stack:
        connecting = stack.enter_context(ThreadPoolExecutor(1)).submit(
            listener.connect, 0, addresses, timeout_seconds=SECONDS
        )
        connections = []
        for use in (LIFELINE, STREAM):
            peer = stack.enter_context(greeted(listener.port, use, run_id=RUN_ID))
            assert len(peer.recv(GREETING, socket.MSG_WAITALL)) == GREETING
            connections.append(peer)
        communicator = connecting.result()
        yield Ranks(communicator, *connections)
        communicator.close()


def fragment(offset: int, size: int, *, phase: int = 0) -> bytes:
    header = struct.pack("=IBBHiIQQQQ", MAGIC, ALL_REDUCE, phase, 0, FLOAT32, 0, ELEMENTS, TAG, offset, size)
    return header.ljust(64, b"\0") + bytes(size + -size % 64)


def sum_with(ranks: Ranks, sent: bytes = b"", *, told: bytes | None = None) -> tuple[int, str]:
    """Returns the code and the message of a sum for which rank 1 sends these bytes, or ends and tells these."""
    values, out = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)
    began = time.monotonic()
    number = start(ranks.communicator, values, out, kind=ALL_REDUCE, tag=TAG, seconds=SECONDS / 2)
    ranks.stream.sendall(sent)
    if told is not None:
        ranks.lifeline.sendall(told)
        ranks.lifeline.shutdown(socket.SHUT_WR)
        ranks.stream.shutdown(socket.SHUT_WR)
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
    code, message = sum_with(ranks, sent)
    assert code == UNAVAILABLE
    assert message == "lost rank 1: it sent a fragment that nobody expects"


def reason(code: int, text: bytes) -> bytes:
    return bytes([code]) + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(reason(3, b"m" * 500)[:300], id="cut off"),
        pytest.param(reason(3, b"m" * 500)[:2], id="cut off in its length"),
        pytest.param(reason(3, b"m" * 1001), id="too long"),
        pytest.param(reason(3, b"m" * 65_535), id="much too long"),
    ],
)
def test_a_rank_whose_reason_is_missing_cut_off_or_too_long_is_named(ranks, told):
    code, message = sum_with(ranks, told=told)
    assert code == UNAVAILABLE
    assert message == "lost rank 1: its connection ended"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, UNAVAILABLE), (17, UNAVAILABLE), (255, UNAVAILABLE), (3, INVALID_ARGUMENT), (15, DATA_LOSS)],
)
def test_a_reason_is_an_error_whatever_its_code(ranks, code, expected):
    assert sum_with(ranks, told=reason(code, b"the reason")) == (expected, "the reason")


def test_a_reason_without_words_is_an_error_too(ranks):
    assert sum_with(ranks, told=reason(15, b"")) == (DATA_LOSS, "")


def test_what_a_rank_has_sent_counts_although_its_end_is_seen_before(ranks):
    values, out = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)
    number = start(ranks.communicator, values, out, kind=ALL_REDUCE, tag=TAG, seconds=SECONDS / 2)
    ranks.lifeline.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    ranks.stream.sendall(fragment(0, BYTES))
    time.sleep(0.2)
    ranks.stream.sendall(fragment(0, BYTES, phase=1))
    assert wait(number) == (0, "")


def test_a_reason_of_the_longest_size_arrives_whole_also_if_more_follows(ranks):
    assert sum_with(ranks, told=reason(15, b"m" * 1000) + b"surplus") == (DATA_LOSS, "m" * 1000)


def test_a_reason_counts_while_the_stream_is_open(ranks):
    values, out = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)
    number = start(ranks.communicator, values, out, kind=ALL_REDUCE, tag=TAG, seconds=SECONDS / 2)
    ranks.lifeline.sendall(reason(15, b"the reason"))
    assert wait(number) == (DATA_LOSS, "the reason")


def test_what_was_sent_before_the_reason_counts_although_it_arrives_later(ranks):
    values, out = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)
    first = start(ranks.communicator, values, out, kind=ALL_REDUCE, tag=TAG, seconds=SECONDS / 2)
    ranks.lifeline.sendall(reason(15, b"the reason"))
    # The summands of rank 1, which are zeros, and then its sums.
    ranks.stream.sendall(fragment(0, BYTES) + fragment(0, BYTES, phase=1))
    ranks.stream.shutdown(socket.SHUT_WR)
    assert wait(first) == (0, "")
    second = start(ranks.communicator, values, out, kind=ALL_REDUCE, tag=TAG + 1, seconds=SECONDS / 2)
    assert wait(second) == (DATA_LOSS, "the reason")
