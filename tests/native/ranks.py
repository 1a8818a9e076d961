"""Several ranks in this process, whose operations are called with ctypes, without TensorFlow."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np

from tests.native import build
from tfdist.allreduce.native import library as loaded
from tfdist.allreduce.native.communicator import Communicator, Listener

ALL_REDUCE, RECEIVE = 1, 6
DEADLINE_EXCEEDED = 4
# What a connection is for, and the bytes of a greeting.
LIFELINE, STREAM = 1, 2
GREETING = 92
SECONDS = 30.0
# Numbers of TensorFlow's dtypes.
DTYPES = {
    np.dtype(np.float32): 1,
    np.dtype(np.float64): 2,
    np.dtype(np.int32): 3,
    np.dtype(ml_dtypes.bfloat16): 14,
    np.dtype(np.float16): 19,
}


@contextlib.contextmanager
def native_library() -> Iterator[Any]:
    """Loads the transport that is built from this checkout; afterwards, tfdist_native cannot be imported."""
    folder = str(build.package())
    known = sys.modules.pop("tfdist_native", None)
    sys.path.insert(0, folder)
    loaded.library.cache_clear()
    try:
        library = loaded.library()
        library.tfdist_start.restype = ctypes.c_int64
        yield library
    finally:
        sys.path.remove(folder)
        sys.modules.pop("tfdist_native", None)
        if known is not None:
            sys.modules["tfdist_native"] = known
        loaded.library.cache_clear()


def addresses_of(listeners: Sequence[Listener], *, hosts: int = 1) -> list[str]:
    """Returns the addresses of ranks; those of different hosts share no memory."""
    return [
        f"rank_{rank} 127.0.0.1 {one.port} {one.machine}-{rank % hosts} {one.local}"
        for rank, one in enumerate(listeners)
    ]


@contextlib.contextmanager
def connected(ranks: int, *, hosts: int = 1) -> Iterator[list[Communicator]]:
    """Connects ranks, which are on different hosts in turn. Closes the connections afterwards."""
    run_id = uuid.uuid4().hex
    listeners = [Listener("127.0.0.1", shares_memory=True, run_id=run_id) for _ in range(ranks)]
    addresses = addresses_of(listeners, hosts=hosts)
    with ThreadPoolExecutor(ranks) as threads:
        futures = [
            threads.submit(one.connect, rank, addresses, timeout_seconds=SECONDS) for rank, one in enumerate(listeners)
        ]
        communicators = [future.result() for future in futures]
    try:
        yield communicators
    finally:
        for communicator in communicators:
            communicator.close()


def greeted(port: int, use: int, *, run_id: str) -> socket.socket:
    """Returns a connection of rank 1 of 2 to the listener of rank 0, which has sent its greeting.

    Args:
        port: that of the listener.
        use: LIFELINE or STREAM.
        run_id: the id of the run.
    """
    peer = socket.create_connection(("127.0.0.1", port), SECONDS)
    peer.sendall(struct.pack("=8sIIIII64s", b"tfdist1\0", 2, 1, 0, 2, use, run_id.encode()))
    return peer


def start(
    communicator: Communicator,
    values: np.ndarray,
    out: np.ndarray,
    *,
    kind: int = ALL_REDUCE,
    tag: int = 1,
    peer: int = 0,
    seconds: float = SECONDS,
) -> int:
    """Starts an operation, and returns its number. Both arrays have to live until it ends."""
    number = loaded.library().tfdist_start(
        ctypes.c_int64(communicator.number),
        kind,
        DTYPES[values.dtype],
        ctypes.c_uint64(values.size),
        values.ctypes.data_as(ctypes.c_void_p),
        out.ctypes.data_as(ctypes.c_void_p),
        peer,
        ctypes.c_uint64(tag),
        ctypes.c_double(seconds),
    )
    assert number
    return int(number)


def wait(number: int) -> tuple[int, str]:
    """Waits for an operation, and returns its code, 0 for success, and the message of its error."""
    error = ctypes.create_string_buffer(4096)
    code = loaded.library().tfdist_wait(ctypes.c_int64(number), error, 4096)
    return int(code), error.value.decode()


def all_reduce(
    communicators: Sequence[Communicator], arrays: Sequence[np.ndarray], *, tag: int = 1
) -> list[np.ndarray]:
    """Returns the sum of the arrays of all ranks, on each rank."""
    sums = [np.empty_like(array) for array in arrays]
    numbers = [
        start(communicator, array, total, tag=tag)
        for communicator, array, total in zip(communicators, arrays, sums, strict=True)
    ]
    for number in numbers:
        assert wait(number) == (0, "")
    return sums
