"""Ends all processes of a launch: members of its process groups, and processes with its id in their environment.

This file is also the program of the guard. It imports nothing of tfdist, so that the guard can run it as
`python -I -S FILE`, which starts in milliseconds. The guard reads process groups from its standard input. If the input
ends without "done", the launcher has died, and the guard ends the processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence

POLL_SECONDS = 0.02
KILL_SECONDS = 5.0
"""How long the kernel may take to end a killed process; a process that hangs in a device never ends."""


def survivors(groups: Collection[int], launch_id: str, *, spared: Collection[int] = ()) -> list[int]:
    """Returns the running processes of a launch, found by their group and, on Linux, by their environment.

    Args:
        groups: the process groups of the tasks.
        launch_id: the value of TFDIST_LAUNCH_ID that the processes inherited.
        spared: process groups whose processes are left out.

    Returns:
        Process numbers on Linux; on other systems, the negative numbers of process groups.

    Example:
        >>> survivors([], "an id that no process has")
        []
    """
    if not sys.platform.startswith("linux"):
        return [-group for group in groups if group not in spared and _exists(group)]
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            # The name of the command is in parentheses and may contain any character, even a parenthesis.
            state, _, group = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()[:3]
            if state in b"ZX" or int(group) in spared:
                continue
            if int(group) in groups or _has_launch_id(name, launch_id):
                found.append(int(name))
        except (OSError, ValueError):
            continue  # The process has ended meanwhile, or belongs to another user.
    return found


def _has_launch_id(process: str, launch_id: str) -> bool:
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
    groups: Collection[int],
    launch_id: str,
    *,
    grace_seconds: float,
    kill_now: Callable[[], bool] = lambda: False,
    spared: Collection[int] = (),
) -> list[int]:
    """Ends all processes of a launch: SIGTERM, a grace period, SIGKILL.

    Args:
        groups: the process groups of the tasks.
        launch_id: the unique name of the launch.
        grace_seconds: how long the processes may take to end after SIGTERM.
        kill_now: called repeatedly during the grace period; True ends it at once.
        spared: process groups that are not ended.

    Returns:
        The processes that could not be ended; empty unless a process hangs in the kernel.

    Example:
        >>> sweep([], "an id that no process has", grace_seconds=5.0)
        []
    """
    signalled: set[int] = set()
    kill_at = time.monotonic() + grace_seconds
    while found := survivors(groups, launch_id, spared=spared):
        if time.monotonic() >= kill_at or kill_now():
            break
        for process in found:
            if process not in signalled:
                send(process, signal.SIGTERM)
        signalled.update(found)
        time.sleep(POLL_SECONDS)
    give_up_at = time.monotonic() + KILL_SECONDS
    while found and time.monotonic() < give_up_at:
        for process in found:
            send(process, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
        found = survivors(groups, launch_id, spared=spared)
    return found


def send(process: int, number: int) -> None:
    """Sends a signal to a process if it still exists; a negative number stands for a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def guard(launch_id: str, grace_seconds: float) -> None:
    """Waits for the launcher's end, and ends the processes of the launch if the launcher did not write "done"."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    words = sys.stdin.read().split()
    if "done" not in words:
        sweep(groups_in(words), launch_id, grace_seconds=grace_seconds)


def groups_in(words: Sequence[str]) -> set[int]:
    """Returns the process groups that exist, from the words that the launcher has sent.

    Args:
        words: a number for each group that was started, and its negative after the end of the group.

    Example:
        >>> groups_in(["70", "71", "-70", "72"]) == {71, 72}
        True
    """
    groups: set[int] = set()
    for number in map(int, words):
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    return groups


if __name__ == "__main__":
    guard(sys.argv[1], float(sys.argv[2]))
