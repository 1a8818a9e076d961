"""Names the machine of this process, and reads the state of a process on this machine."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from pathlib import Path


@functools.cache
def machine_name() -> str:
    """Returns a short text that is equal for all processes that see each other's process ids, and only for those.

    Example:
        >>> len(machine_name())
        12
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot, namespace = socket.gethostname(), ""
    return hashlib.sha256(f"{boot}{namespace}".encode()).hexdigest()[:12]


def process_state(pid: int) -> str:
    """Returns the letter of the state of a process: R, S, D, T (stopped by a signal), Z; "" if it cannot be read.

    Args:
        pid: number of a process on this machine.

    Example:
        >>> import os
        >>> process_state(os.getpid()) in "RS"
        True
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name of the program, in parentheses, may contain spaces and parentheses.
    return text.rpartition(")")[2].split()[0]
