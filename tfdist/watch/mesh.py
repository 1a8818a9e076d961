"""Mesh: every worker sends a small record about itself to all other workers, by UDP.

TensorFlow's coordination service is not used: its Python calls hold the global interpreter lock while they wait, and
the service runs on worker 0, which may be the worker that is stopped.

A worker sends its whole record at once when something urgent changes, and again at every heartbeat. Lost datagrams are
therefore replaced after one heartbeat. Each datagram has a number, and older datagrams than the newest are ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tfdist._log import get_logger
from tfdist.watch.datagram import MAX_BYTES, Datagram, Value
from tfdist.watch.udp import open_socket, resolve

_HEARTBEAT_SECONDS = 0.5
# How long close() may have to wait for the thread.
_LONGEST_WAIT_SECONDS = 0.25
# How often a process that ends says so, and within which time.
_LAST_SENDS = 3
_LAST_SECONDS = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerState:
    """The newest record of a worker.

    Attributes:
        worker: number of the worker.
        fields: what the worker has published.
        age_seconds: time since the last datagram of the worker; 0 for this worker itself.
    """

    worker: int
    fields: Mapping[str, Value]
    age_seconds: float


class Mesh:
    """Publishes the record of this worker to all other workers, and keeps their newest records.

    A cluster of one worker needs no socket and no thread.

    Args:
        worker: number of this worker.
        addresses: host and UDP port of every worker, ordered by worker.
        token: a random number that the workers of one start of the program share; other datagrams are ignored.
        udp: a socket from `tfdist.watch.udp.open_socket` that is bound to the port of this worker; None opens one.
        heartbeat_seconds: time between two sends of an unchanged record.

    Raises:
        OSError: if a host name does not resolve, or the port is in use.

    Example:
        >>> mesh = Mesh(0, [("localhost", 0)], token=7)
        >>> mesh.publish(step=3)
        >>> mesh.states()[0].fields["step"]
        3
    """

    def __init__(
        self,
        worker: int,
        addresses: Sequence[tuple[str, int]],
        token: int,
        *,
        udp: socket.socket | None = None,
        heartbeat_seconds: float = _HEARTBEAT_SECONDS,
    ) -> None:
        self.worker, self.size = worker, len(addresses)
        self._token, self._heartbeat = token, heartbeat_seconds
        self._fields: dict[str, Value] = {}
        self._numbers = itertools.count(1)
        # By worker: the newest datagram, and when a datagram came last.
        self._received: dict[int, tuple[Datagram, float]] = {}
        self._callbacks: list[Callable[[WorkerState], None]] = []
        self._closed = threading.Event()
        self._udp: socket.socket | None = None
        if self.size == 1:
            return
        self._udp = open_socket(port=addresses[worker][1]) if udp is None else udp
        self._targets = [
            target
            for other, (host, port) in enumerate(addresses)
            if other != worker
            for target in resolve(self._udp, host, port)
        ]
        self._thread = threading.Thread(target=self._run, args=(self._udp,), daemon=True, name="tfdist-mesh")
        self._thread.start()

    def publish(self, urgent: bool = False, **fields: Value) -> None:
        """Changes fields of this worker's record; other fields keep their values.

        May be called from any thread and from a signal handler, because it takes no lock.

        Args:
            urgent: whether to send the record at once, and not only with the next heartbeat.
            **fields: new values: numbers, strings, bool or None.

        Raises:
            ValueError: if the record would need more bytes than a datagram may have.
        """
        size = len(Datagram(token=0, worker=0, number=0, fields={**self._fields, **fields}).to_bytes())
        if size > MAX_BYTES:
            raise ValueError(f"expected a record of at most {MAX_BYTES} bytes, received {size} with {sorted(fields)}.")
        # One call of a built-in method: no other thread and no signal handler sees a part of the change.
        self._fields.update(fields)
        if urgent:
            self._send()

    def publish_last(self, **fields: Value) -> None:
        """Changes fields and sends the record several times, for a process that ends right after.

        Args:
            **fields: new values, as in publish.
        """
        for _ in range(_LAST_SENDS if self.size > 1 else 0):
            self.publish(urgent=True, **fields)
            time.sleep(_LAST_SECONDS / _LAST_SENDS)

    def states(self) -> tuple[WorkerState | None, ...]:
        """Returns the newest record of every worker, ordered by worker; None for workers that have sent none."""
        now = time.monotonic()
        states: list[WorkerState | None] = [None] * self.size
        for worker, (newest, at) in list(self._received.items()):
            states[worker] = WorkerState(worker=worker, fields=newest.fields, age_seconds=now - at)
        states[self.worker] = WorkerState(worker=self.worker, fields=dict(self._fields), age_seconds=0.0)
        return tuple(states)

    def on_change(self, callback: Callable[[WorkerState], None]) -> None:
        """Calls a function, in the thread of the mesh, whenever the record of another worker has changed.

        Args:
            callback: called with the new record. It must not wait for long, because nothing is received meanwhile.
        """
        self._callbacks.append(callback)

    def close(self) -> None:
        """Sends the record once more, and ends the thread. Later calls do nothing."""
        if self._udp is None or self._closed.is_set():
            return
        self._send()
        self._closed.set()
        with contextlib.suppress(OSError):
            # An empty datagram to this process itself wakes the thread.
            self._udp.sendto(b"", self._udp.getsockname())
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self, udp: socket.socket) -> None:
        poll = select.poll()
        poll.register(udp, select.POLLIN)
        beat_at = time.monotonic()
        with udp:
            while not self._closed.is_set():
                wait = beat_at - time.monotonic()
                if wait <= 0:
                    self._send()
                    beat_at = time.monotonic() + self._heartbeat
                elif poll.poll(1000 * min(wait, _LONGEST_WAIT_SECONDS)):
                    self._receive(udp)

    def _send(self) -> None:
        if self._udp is None:
            return
        # The number is drawn before the fields are read: a higher number never has older fields.
        number = next(self._numbers)
        data = Datagram(token=self._token, worker=self.worker, number=number, fields=dict(self._fields)).to_bytes()
        for target in self._targets:
            # A datagram that cannot be sent is lost like any other. BlockingIOError is an OSError.
            with contextlib.suppress(OSError):
                self._udp.sendto(data, target)

    def _receive(self, udp: socket.socket) -> None:
        try:
            data = udp.recv(2 * MAX_BYTES)
        except OSError:
            # The answer of a host whose process has ended: "port unreachable".
            return
        received = Datagram.from_bytes(data)
        if received is None or received.token != self._token or received.worker == self.worker:
            return
        if not 0 <= received.worker < self.size:
            return
        known = self._received.get(received.worker)
        if known is not None and received.number <= known[0].number:
            return
        self._received[received.worker] = received, time.monotonic()
        if known is None or known[0].fields != received.fields:
            state = WorkerState(worker=received.worker, fields=received.fields, age_seconds=0.0)
            for callback in self._callbacks:
                try:
                    callback(state)
                except Exception:
                    get_logger().exception("a callback of the mesh failed")
