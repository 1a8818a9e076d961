"""Every rank but rank 0 at the rendezvous: it looks for rank 0, reports its port, and waits for all addresses."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable

from tfdist.cluster.meeting import Meeting
from tfdist.cluster.probe import NO_REPLY, REFUSED
from tfdist.cluster.rendezvous_lines import MAX_BYTES, Report, document_of, proof_of

_REPORT_EVERY_SECONDS = 10.0
_CONNECT_SECONDS = 2.0
# The pause before the ports are tried again grows to the second number.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0
ANOTHER = "another program, or another run, answers there"


def take_part(
    meeting: Meeting, *, port: int, deadline: float, timeout_seconds: float, log: Callable[[str], None]
) -> tuple[str, ...]:
    """Returns the addresses of all ranks, which rank 0 sends once all ranks have reported.

    Args:
        meeting: where the ranks meet.
        port: the port of this rank in the cluster.
        deadline: when to give up, as in time.monotonic().
        timeout_seconds: the time limit that the message names.
        log: called with a line that says what this rank waits for.

    Raises:
        TimeoutError: at the deadline; the message says why rank 0 was not found, or names the absent ranks.
        ValueError: if another process has the same rank, or if the ranks disagree on their number.
    """
    start = time.monotonic()
    pause, reported, reason = _PAUSE_SECONDS, 0.0, NO_REPLY
    while (now := time.monotonic()) < deadline:
        reasons = []
        for host in meeting.hosts:
            for one in meeting.ports:
                found = _ask(meeting, (host, one), port=port, deadline=deadline)
                if isinstance(found, tuple):
                    return found
                reasons.append(found)
                # A host that refuses no port would take seconds for each of them.
                if found not in (REFUSED, ANOTHER) or time.monotonic() >= deadline:
                    break
        # A refused port says less than whatever else has happened.
        reason = next((one for one in reasons if one != REFUSED), REFUSED)
        if now - start - reported >= _REPORT_EVERY_SECONDS:
            reported = now - start
            log(f"waiting for rank 0 on {_places(meeting)} ({reported:.0f} s of {timeout_seconds:g} s): {reason}")
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    raise TimeoutError(
        f"{meeting.name} did not find rank 0 on {_places(meeting)} in {timeout_seconds:g} s ({reason}); look in the "
        f"output of rank 0 for why it ended, or {meeting.advice}."
    )


def _places(meeting: Meeting) -> str:
    ports = f"port {meeting.ports[0]}" if len(meeting.ports) == 1 else f"{len(meeting.ports)} ports"
    return f"{' or '.join(meeting.hosts)}, {ports}"


def _ask(meeting: Meeting, place: tuple[str, int], *, port: int, deadline: float) -> tuple[str, ...] | str:
    """Returns the addresses that rank 0 sends, or why it was not found at this place."""
    try:
        seconds = max(0.01, min(_CONNECT_SECONDS, deadline - time.monotonic()))
        with socket.create_connection(place, timeout=seconds) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            greeting = document_of(_line(connection))
            theirs = greeting.get("nonce")
            if greeting.get("tfdist") != "rendezvous" or not isinstance(theirs, str):
                return ANOTHER
            own = secrets.token_hex(16)
            proof = proof_of(meeting.run_id, theirs, meeting.rank, meeting.size, port, own)
            connection.sendall(Report(meeting.rank, meeting.size, port, own, proof).to_line())
            # Rank 0 answers by the same deadline; it has a little longer, so that its sentence arrives.
            connection.settimeout(max(0.01, deadline - time.monotonic()) + _CONNECT_SECONDS)
            answer = document_of(_line(connection))
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return NO_REPLY
    except OSError as error:
        return error.strerror or str(error)
    if "proof" not in answer:
        return ANOTHER
    content = [(name, value) for name, value in answer.items() if name != "proof"]
    if answer["proof"] != proof_of(meeting.run_id, own, content):
        return ANOTHER
    if "late" in answer:
        raise TimeoutError(answer["late"])
    if "error" in answer:
        raise ValueError(answer["error"])
    return tuple(str(address) for address in answer["addresses"])


def _line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_BYTES:
        more = connection.recv(65536)
        if not more:
            break
        data += more
    return data
