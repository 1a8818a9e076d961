"""/dev/shm: there, and with room for the snapshots that AutoResume keeps in memory, and for NCCL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tfdist.doctor.checks.disk import Room, room_of
from tfdist.doctor.finding import Finding, grade, size_text

CHECK = "/dev/shm"
# Docker gives 64 MiB to a container.
WARN_BYTES = 1 << 30
FAIL_BYTES = 16 << 20
_ACTION = (
    "give the container more: `docker run --shm-size=8g`, or in Kubernetes an emptyDir volume of the medium Memory at "
    "/dev/shm"
)


def gather(folder: Path = Path("/dev/shm")) -> Room | None:
    """Returns the room in /dev/shm; None if this process cannot write there.

    Args:
        folder: another folder.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        return None
    return room_of(str(folder))


def decide(tasks: Sequence[str], room: Room | None) -> Finding:
    """Returns the finding for the tasks of one host.

    Args:
        tasks: the tasks of the host.
        room: what the first of them found.

    Example:
        >>> decide(["worker 0"], Room(path="/dev/shm", free=8 << 30)).text
        '8.0 GiB are free'
        >>> decide(["worker 0"], Room(path="/dev/shm", free=64 << 20)).verdict
        'warn'
        >>> decide(["worker 0"], None).text
        'it does not exist, or this user cannot write there'
    """
    verdict = grade(room.free, warn=WARN_BYTES, fail=FAIL_BYTES) if room else "warn"
    text = f"{size_text(room.free)} are free" if room else "it does not exist, or this user cannot write there"
    action = "" if verdict == "pass" else _ACTION
    return Finding(check=CHECK, task=", ".join(tasks), verdict=verdict, text=text, action=action)
