"""Sums arrays with tfdist-native, called with ctypes: python native_sum.py RANK RANKS FOLDER CHANNEL[,ADDRESS] SIZE...

CHANNEL is "shared" or "tcp", and ADDRESS the IP address to listen on, 127.0.0.1 by default.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import tfdist_native
from sums import measure, wait_for

ALL_REDUCE, FLOAT32 = 1, 1
rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
channel, _, address = sys.argv[4].partition(",")
library = ctypes.CDLL(str(tfdist_native.LIBRARY))
library.tfdist_listen.restype = ctypes.c_void_p
library.tfdist_connect.restype = library.tfdist_start.restype = ctypes.c_int64
text, error = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(4096)

listener = library.tfdist_listen((address or "127.0.0.1").encode(), int(channel == "shared"), b"benchmark", error, 4096)
assert listener, error.value
library.tfdist_address(ctypes.c_void_p(listener), text, 4096)
(folder / f"{rank}~").write_bytes(f"rank_{rank} ".encode() + text.value.partition(b" ")[2])
(folder / f"{rank}~").rename(folder / f"{rank}.address")
addresses = b"\n".join(wait_for(folder / f"{other}.address") for other in range(ranks))
communicator = library.tfdist_connect(ctypes.c_void_p(listener), rank, addresses, ctypes.c_double(60), error, 4096)
assert communicator, error.value


def summed(elements: int):
    own, total = np.ones(elements, np.float32), np.empty(elements, np.float32)

    def step() -> None:
        number = library.tfdist_start(
            ctypes.c_int64(communicator),
            ALL_REDUCE,
            FLOAT32,
            ctypes.c_uint64(elements),
            own.ctypes.data_as(ctypes.c_void_p),
            total.ctypes.data_as(ctypes.c_void_p),
            0,
            ctypes.c_uint64(1),
            ctypes.c_double(60),
        )
        assert library.tfdist_wait(ctypes.c_int64(number), error, 4096) == 0, error.value

    return step, lambda: total


measure(rank, ranks, sys.argv[5:], summed)
library.tfdist_close(ctypes.c_int64(communicator))
