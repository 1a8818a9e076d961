"""Rank 0 at the rendezvous: it listens, collects the reports of the other ranks, and answers with all addresses."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterator

from tfdist.cluster.meeting import COORDINATOR, Meeting
from tfdist.cluster.rendezvous_lines import (
    MAX_REPORT_BYTES,
    Report,
    Seen,
    addresses_of,
    line_of,
    names_of,
    plain,
    proof_of,
)
from tfdist.cluster.sockets import bind_all_interfaces, is_own_host

_REPORT_EVERY_SECONDS = 10.0
# How long rank 0 may take to hand the list to one rank.
_SEND_SECONDS = 5.0
# Ranks come in at the same moment.
_BACKLOG = 1024
# Connections that have not reported yet; the oldest one is closed, and its rank comes back.
_MOST_STRANGERS = 64


def listen_for_ranks(meeting: Meeting) -> socket.socket:
    """Returns a socket that listens at the first of the meeting's ports that is free, or at any if the launcher tells.

    Args:
        meeting: where the ranks meet.

    Raises:
        ValueError: if this host is none of those on which the other ranks look, or if all ports are taken.
    """
    if meeting.hosts and not any(is_own_host(host) for host in meeting.hosts):
        raise ValueError(
            f"expected rank 0 on {' or '.join(meeting.hosts)}, which {meeting.named_by} names, but it runs on "
            f"{socket.gethostname()}; {meeting.advice}."
        )
    for port in meeting.ports if meeting.hosts else (0,):
        server = None
        try:
            server = bind_all_interfaces(port)
            server.listen(_BACKLOG)
            server.setblocking(False)
            return server
        except OSError:
            if server is not None:
                server.close()
    raise ValueError(
        f"expected port {' or '.join(str(port) for port in meeting.ports)} to be free for the exchange of addresses, "
        f"but another process holds it; set {COORDINATOR} to another port."
    )


def lead(
    meeting: Meeting,
    server: socket.socket,
    *,
    port: int,
    deadline: float,
    timeout_seconds: float,
    log: Callable[[str], None],
) -> tuple[str, ...]:
    """Returns the addresses of all ranks, once all have reported, and sends them to all.

    Args:
        meeting: where the ranks meet.
        server: the socket that listens.
        port: the port of rank 0 in the cluster.
        deadline: when to give up, as in time.monotonic().
        timeout_seconds: the time limit that the message names.
        log: called with a line that names the absent ranks.

    Raises:
        TimeoutError: at the deadline; the message names the ranks that are absent. The other ranks raise the same.
    """
    with _Reception(meeting, server) as reception:
        start, reported = time.monotonic(), 0.0
        while absent := reception.absent():
            now = time.monotonic()
            if now >= deadline:
                sentence = (
                    f"{names_of(absent)} of {meeting.size} did not report to rank 0 in {timeout_seconds:g} s; "
                    "look in their output for why they ended, and check that they reach the host of rank 0."
                )
                reception.send_to_all({"late": sentence})
                raise TimeoutError(sentence)
            if now - start - reported >= _REPORT_EVERY_SECONDS:
                reported = now - start
                log(f"waiting for {names_of(absent)} ({reported:.0f} s of {timeout_seconds:g} s)")
            reception.wait(min(deadline, start + reported + _REPORT_EVERY_SECONDS) - now)
        addresses = addresses_of([reception.reports[rank][1] for rank in sorted(reception.reports)], port=port)
        reception.send_to_all({"addresses": addresses})
        return addresses


class _Reception:
    """The connections of the other ranks."""

    def __init__(self, meeting: Meeting, server: socket.socket) -> None:
        self.reports: dict[int, tuple[Report, Seen, socket.socket]] = {}
        self._meeting, self._server = meeting, server
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)
        # What each connection that has not reported yet has sent so far, and the nonce that it has received.
        self._open: dict[socket.socket, tuple[str, bytes]] = {}

    def __enter__(self) -> _Reception:
        return self

    def __exit__(self, *exc: object) -> None:
        for connection in self._connections():
            connection.close()
        self._selector.close()

    def _connections(self) -> Iterator[socket.socket]:
        yield from self._open
        yield from (connection for _, _, connection in self.reports.values())

    def absent(self) -> list[int]:
        """Returns the ranks that have not reported."""
        return [rank for rank in range(1, self._meeting.size) if rank not in self.reports]

    def wait(self, seconds: float) -> None:
        """Handles what comes in within some seconds."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj is self._server:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                self._read(key.fileobj)

    def send_to_all(self, document: dict[str, object]) -> None:
        """Sends a document to all ranks that have reported."""
        for report, _, connection in self.reports.values():
            proof = proof_of(self._meeting.run_id, report.nonce, list(document.items()))
            # A rank that has gone notices at the next step that the others are missing.
            with contextlib.suppress(OSError):
                connection.settimeout(_SEND_SECONDS)
                connection.sendall(line_of({**document, "proof": proof}))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection = self._server.accept()[0]
            connection.setblocking(False)
            nonce = secrets.token_hex(16)
            self._open[connection] = (nonce, b"")
            self._selector.register(connection, selectors.EVENT_READ)
            connection.sendall(line_of({"tfdist": "rendezvous", "nonce": nonce}))
            if len(self._open) > _MOST_STRANGERS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                self._drop(oldest)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(MAX_REPORT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if connection not in self._open:
            # A rank sends nothing after its report, so that this is the end of the connection: the rank may come back.
            self._forget(connection)
            return
        nonce, earlier = self._open[connection]
        line = earlier + data
        if data and b"\n" not in line and len(line) <= MAX_REPORT_BYTES:
            self._open[connection] = (nonce, line)
            return
        del self._open[connection]
        report = Report.from_line(line)
        known = report is not None and report.proof == proof_of(
            self._meeting.run_id, nonce, report.rank, report.size, report.port, report.nonce
        )
        if report is None or not known:
            self._drop(connection)
            return
        wrong = self._wrong(report)
        if wrong:
            proof = proof_of(self._meeting.run_id, report.nonce, [("error", wrong)])
            with contextlib.suppress(OSError):
                connection.sendall(line_of({"error": wrong, "proof": proof}))
            self._drop(connection)
            return
        seen = Seen(plain(connection.getpeername()[0]), plain(connection.getsockname()[0]), report.port)
        self.reports[report.rank] = (report, seen, connection)

    def _wrong(self, report: Report) -> str:
        if report.size != self._meeting.size:
            return (
                f"expected {self._meeting.size} ranks, as rank 0 does, received a size of {report.size} from rank "
                f"{report.rank}; start all ranks with one command."
            )
        if report.rank in self.reports or report.rank >= self._meeting.size:
            return (
                f"expected one process for each rank below {self._meeting.size}, received another one for rank "
                f"{report.rank}; start all ranks with one command."
            )
        return ""

    def _forget(self, connection: socket.socket) -> None:
        for rank, (_, _, known) in list(self.reports.items()):
            if known is connection:
                del self.reports[rank]
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
