"""Ends what is left of a job: members of its process groups, and processes that carry its id in their environment.

This file is also the guard's program, run on its own by `python -I -S` so that it starts in milliseconds: it imports
nothing of tfdist. The guard reads process groups from its standard input; if the input ends without "done", the
launcher has died, and the guard ends the job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection

POLL_SECONDS = 0.02
KILL_SECONDS = 5.0
"""How long the kernel may take to end a killed process; one that hangs in a device takes for ever."""


def survivors(groups: Collection[int], launch_id: str) -> list[int]:
    """Returns the living processes of a job, found by group or by environment (the latter on Linux only).

    Args:
        groups: The process groups of the ranks.
        launch_id: The value of TFDIST_LAUNCH_ID that its processes inherited.
    """
    if not sys.platform.startswith("linux"):
        return [-group for group in groups if _exists(group)]
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            # The command's name is in parentheses and may contain anything, so count from the last parenthesis.
            state, _, group = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()[:3]
            if state in b"ZX":
                continue
            if int(group) in groups or _carries(name, launch_id):
                found.append(int(name))
        except (OSError, ValueError):
            continue  # It ended meanwhile, or belongs to somebody else.
    return found


def _carries(process: str, launch_id: str) -> bool:
    return f"TFDIST_LAUNCH_ID={launch_id}".encode() in _read(f"/proc/{process}/environ").split(b"\0")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sweep(
    groups: Collection[int], launch_id: str, *, grace_seconds: float, hurry: Callable[[], bool] = lambda: False
) -> list[int]:
    """Ends all processes of a job: SIGTERM, a grace period, SIGKILL.

    Args:
        groups: The process groups of the ranks.
        launch_id: The job's unique name.
        grace_seconds: How long they may take to end after SIGTERM.
        hurry: Asked again and again whether to kill at once.

    Returns:
        The processes that could not be ended; empty unless one hangs in the kernel.
    """
    told: set[int] = set()
    kill_at = time.monotonic() + grace_seconds
    while found := survivors(groups, launch_id):
        if time.monotonic() >= kill_at or hurry():
            break
        for process in found:
            if process not in told:
                send(process, signal.SIGTERM)
        told.update(found)
        time.sleep(POLL_SECONDS)
    give_up_at = time.monotonic() + KILL_SECONDS
    while found and time.monotonic() < give_up_at:
        for process in found:
            send(process, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
        found = survivors(groups, launch_id)
    return found


def send(process: int, number: int) -> None:
    """Sends a signal to a process, or to the process group of a negative number; no matter if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def guard(launch_id: str, grace_seconds: float) -> None:
    """Waits for the launcher's end, and ends the job if it died without saying "done"."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    words = sys.stdin.read().split()
    if "done" not in words:
        sweep({int(word) for word in words}, launch_id, grace_seconds=grace_seconds)


if __name__ == "__main__":
    guard(sys.argv[1], float(sys.argv[2]))
