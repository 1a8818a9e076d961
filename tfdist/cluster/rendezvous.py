"""Exchanges the addresses of ranks whose launcher does not tell them: each rank reports its port to rank 0.

Rank 0 listens, and answers with the complete list once all ranks have reported. The host of a rank is the address from
which it has connected, so that no rank has to know which of its addresses the others reach. Both sides prove that they
know the run id, so that two runs that meet on a port do not mix; this is no protection against somebody who knows it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tfdist._log import get_logger
from tfdist.cluster import pmi
from tfdist.cluster.meeting import TIMEOUT_SECONDS, Meeting, ports_of
from tfdist.cluster.rendezvous_leader import lead, listen_for_ranks
from tfdist.cluster.rendezvous_member import take_part
from tfdist.cluster.sockets import HeldPort
from tfdist.cluster.tf_config import Fields


class _Met(NamedTuple):
    fields: Fields
    # Keeps other programs from taking the port of this rank until TensorFlow's server listens on it.
    port: HeldPort


_met: dict[Meeting, _Met] = {}
_lock = threading.Lock()


def meet(
    meeting: Meeting, *, timeout_seconds: float = TIMEOUT_SECONDS, log: Callable[[str], None] | None = None
) -> Fields:
    """Returns the cluster of all ranks, one worker each; every rank calls this function.

    The exchange happens once in a process. The port of this rank stays reserved until the process ends.

    Args:
        meeting: where the ranks meet.
        timeout_seconds: how long to wait for all ranks together.
        log: called with a line that names the absent ranks, every ten seconds; None writes the lines to the tfdist
            logger.

    Raises:
        TimeoutError: at the deadline; the message names the ranks that are absent.
        ValueError: if rank 0 is not on a host on which the others look for it, or if two processes have the same rank.

    Example:
        >>> alone = Meeting(rank=0, size=1, run_id="a", hosts=("localhost",), ports=(), named_by="", advice="")
        >>> meet(alone).jobs
        {}
    """
    if meeting.size == 1:
        return Fields({}, {}, None, 0)
    with _lock:
        if meeting not in _met:
            _met[meeting] = _exchange(meeting, timeout_seconds, get_logger().info if log is None else log)
        return _met[meeting].fields


def _exchange(meeting: Meeting, timeout_seconds: float, log: Callable[[str], None]) -> _Met:
    deadline = time.monotonic() + timeout_seconds
    port = HeldPort()
    try:
        if meeting.pmi is not None and meeting.hosts:
            meeting = pmi.with_run_id(meeting, deadline=deadline)
            meeting = dataclasses.replace(meeting, ports=ports_of(meeting.run_id))
        if meeting.rank == 0:
            with listen_for_ranks(meeting) as server:
                if not meeting.hosts:
                    meeting = pmi.announce(meeting, port=server.getsockname()[1], deadline=deadline)
                addresses = lead(
                    meeting, server, port=port.number, deadline=deadline, timeout_seconds=timeout_seconds, log=log
                )
        else:
            if not meeting.hosts:
                meeting = pmi.look_up(meeting, deadline=deadline)
            addresses = take_part(
                meeting, port=port.number, deadline=deadline, timeout_seconds=timeout_seconds, log=log
            )
    except BaseException:
        port.close()
        raise
    return _Met(Fields({"worker": addresses}, {}, "worker", meeting.rank), port)
