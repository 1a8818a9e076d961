"""Listener and Communicator: the connections of one replica with all others, outside of TensorFlow."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

from tfdist.allreduce.native.library import library
from tfdist.allreduce.options import DEFAULT_TIMEOUT_SECONDS

# In the message of connections that did not come.
_NOT_IN_TIME = " within "
_TEXT_BYTES = 4096


class Listener:
    """Waits for the other ranks, on a port that the system chooses.

    Args:
        host: numeric address to listen on; 0.0.0.0 for all addresses of this host.
        shares_memory: whether ranks of the same host use shared memory.
        run_id: the same on all ranks, and not known to other programs, so that they cannot join.

    Raises:
        OSError: if the address cannot be listened on.
    """

    def __init__(self, host: str, *, shares_memory: bool, run_id: str) -> None:
        error = ctypes.create_string_buffer(_TEXT_BYTES)
        handle = library().tfdist_listen(host.encode(), int(shares_memory), run_id.encode(), error, _TEXT_BYTES)
        if not handle:
            raise OSError(f"the native transport cannot listen on {host}: {error.value.decode()}")
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        library().tfdist_address(handle, text, _TEXT_BYTES)
        self._handle = handle
        self._stop = weakref.finalize(self, library().tfdist_stop_listening, handle)
        self._stop.atexit = False
        _, _, port, machine, local = text.value.decode().split(" ")
        self.port, self.machine, self.local = int(port), machine, local

    def connect(self, rank: int, addresses: Sequence[str], *, timeout_seconds: float) -> Communicator:
        """Connects with all other ranks; a listener connects once.

        Args:
            rank: the own rank.
            addresses: of each rank: NAME HOST PORT MACHINE SOCKET, with a numeric host.
            timeout_seconds: how long to wait for the others.

        Raises:
            TimeoutError: if other ranks do not answer in time; the message names them.
            OSError: if this rank cannot connect, for example because it may open no more files.
        """
        error = ctypes.create_string_buffer(_TEXT_BYTES)
        if self._stop.detach() is None:
            raise OSError("expected a listener that has neither connected nor been closed")
        number = library().tfdist_connect(
            self._handle, rank, "\n".join(addresses).encode(), timeout_seconds, error, _TEXT_BYTES
        )
        if not number:
            text = error.value.decode()
            raise (TimeoutError if _NOT_IN_TIME in text else OSError)(text)
        return Communicator(number, rank=rank, size=len(addresses))

    def close(self) -> None:
        """Frees the port of a listener that has not connected."""
        self._stop()


class Communicator:
    """The connections of one rank; operations of TensorFlow refer to them by their number.

    Attributes:
        number: which connections of this process they are.
        rank: the own rank.
        size: the number of ranks.
        timeout_seconds: how long an operation may wait for other ranks.
    """

    def __init__(self, number: int, *, rank: int, size: int) -> None:
        self.number = number
        self.rank = rank
        self.size = size
        self.timeout_seconds = DEFAULT_TIMEOUT_SECONDS

    @property
    def bytes_sent(self) -> int:
        """How many bytes this rank has sent, headers included."""
        return int(library().tfdist_bytes_sent(self.number))

    def abort(self, code: int, message: str) -> None:
        """Ends all operations, on all ranks, with an error.

        Args:
            code: of the error, such as tf.errors.DEADLINE_EXCEEDED.
            message: of the error.
        """
        library().tfdist_abort(self.number, code, message.encode())

    def take(self, other: Communicator) -> None:
        """Goes on with the connections of another communicator; operations that are not complete fail.

        Args:
            other: of the same rank; it is not used any more.
        """
        library().tfdist_replace(self.number, other.number)

    def close(self) -> None:
        """Ends the connections. Operations that are not complete fail on all ranks."""
        library().tfdist_close(self.number)
