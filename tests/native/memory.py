"""How much memory a process uses."""

from __future__ import annotations

from pathlib import Path


def megabytes() -> float:
    """Returns the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
