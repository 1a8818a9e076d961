"""Names the machine of this process."""

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
