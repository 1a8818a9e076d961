"""A client of the Process Management Interface 1, the key-value store that mpiexec of MPICH and Intel MPI offers.

The launcher passes a connected socket to each rank (PMI_FD). Requests and replies are lines of text. This client sends
no `init`, and sends `finalize` only when the process ends, so that MPI may be initialized in the same process, before
or after. Without `finalize`, mpiexec takes the end of a rank for a failure, and kills the other ranks.

Source: "13/Simple Process Manager Interface v1" of the Flux project; simple_pmi.c of MPICH.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import secrets
import select
import stat
import sys
import time

from tfdist.cluster.meeting import Meeting
from tfdist.cluster.sockets import own_hosts

_KEY = "tfdist"
_FINALIZE_SECONDS = 2.0
_MAX_BYTES = 1 << 16
_finalized_at_exit: set[int] = set()


def with_run_id(meeting: Meeting, *, deadline: float) -> Meeting:
    """Returns the meeting with the launcher's name of this run as the run id.

    Args:
        meeting: a meeting whose hosts are known.
        deadline: when to give up, as in time.monotonic().

    Raises:
        ValueError: if the launcher does not answer as the protocol says.
        TimeoutError: at the deadline.
    """
    return dataclasses.replace(meeting, run_id=_name_of_run(meeting, deadline))


def announce(meeting: Meeting, *, port: int, deadline: float) -> Meeting:
    """Tells the other ranks where rank 0 listens, and returns the meeting with a new run id. Rank 0 calls it.

    Args:
        meeting: a meeting whose hosts are not known.
        port: the port at which rank 0 listens.
        deadline: when to give up, as in time.monotonic().

    Raises:
        ValueError: if the launcher does not answer as the protocol says.
        TimeoutError: if the other ranks do not ask by the deadline.
    """
    hosts, run_id = own_hosts(), secrets.token_hex(16)
    name = _name_of_run(meeting, deadline)
    _ask(meeting, f"cmd=put kvsname={name} key={_KEY} value={run_id},{port},{','.join(hosts)}", "put_result", deadline)
    _ask(meeting, "cmd=barrier_in", "barrier_out", deadline)
    return dataclasses.replace(meeting, run_id=run_id, hosts=hosts, ports=(port,))


def look_up(meeting: Meeting, *, deadline: float) -> Meeting:
    """Returns the meeting with the places and the run id that rank 0 has announced. Every other rank calls it.

    Args:
        meeting: a meeting whose hosts are not known.
        deadline: when to give up, as in time.monotonic().

    Raises:
        ValueError: if the launcher does not answer as the protocol says.
        TimeoutError: if rank 0 does not announce them by the deadline.
    """
    name = _name_of_run(meeting, deadline)
    _ask(meeting, "cmd=barrier_in", "barrier_out", deadline)
    value = _ask(meeting, f"cmd=get kvsname={name} key={_KEY}", "get_result", deadline).get("value", "")
    run_id, _, rest = value.partition(",")
    port, _, hosts = rest.partition(",")
    if not (port.isdigit() and hosts):
        raise _refusal(meeting, f"{value!r} as the address of rank 0")
    return dataclasses.replace(meeting, run_id=run_id, hosts=tuple(hosts.split(",")), ports=(int(port),))


def _name_of_run(meeting: Meeting, deadline: float) -> str:
    return _ask(meeting, "cmd=get_my_kvsname", "my_kvsname", deadline).get("kvsname", "")


def _ask(meeting: Meeting, request: str, reply: str, deadline: float) -> dict[str, str]:
    descriptor = meeting.pmi
    try:
        if descriptor is None or not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError
        _finalize_at_exit(descriptor)
        os.write(descriptor, request.encode() + b"\n")
        line = _line(descriptor, deadline)
    except TimeoutError:
        raise TimeoutError(
            f"{meeting.name} expected mpiexec to answer {request.split()[0]!r} once all ranks have asked for their "
            "cluster, received nothing by the deadline; look in the output of the other ranks for why they ended or "
            "do not create a strategy."
        ) from None
    except OSError:
        raise _refusal(meeting, "a descriptor that is closed") from None
    answer = dict(part.partition("=")[::2] for part in line.split())
    if answer.get("cmd") != reply or answer.get("rc", "0") != "0":
        raise _refusal(meeting, repr(line))
    return answer


def _line(descriptor: int, deadline: float) -> str:
    data = b""
    while not data.endswith(b"\n"):
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        more = os.read(descriptor, 4096)
        if not more or len(data) > _MAX_BYTES:
            raise OSError
        data += more
    return data.decode(errors="replace").strip()


def _refusal(meeting: Meeting, received: str) -> ValueError:
    return ValueError(
        f"expected mpiexec to tell {meeting.name} about this run at the descriptor PMI_FD={meeting.pmi}, received "
        f"{received}; start the program as the only one of this mpiexec, or {meeting.advice}."
    )


def _finalize_at_exit(descriptor: int) -> None:
    if descriptor not in _finalized_at_exit:
        _finalized_at_exit.add(descriptor)
        atexit.register(_finalize, descriptor, os.getpid())


def _finalize(descriptor: int, process: int) -> None:
    # MPI sends `finalize` itself. A forked process has the descriptor, too.
    mpi = sys.modules.get("mpi4py.MPI")
    if os.getpid() == process and not (mpi is not None and mpi.Is_initialized()):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"cmd=finalize\n")
            _line(descriptor, time.monotonic() + _FINALIZE_SECONDS)
