"""Reads the limits of memory and CPU time that a container has, from the control groups of Linux."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def free_memory(root: Path = Path("/")) -> int | None:
    """Returns how many bytes this process and its group may still allocate; None without a limit.

    Args:
        root: the folder that contains proc and sys.

    Example:
        >>> free_memory(Path("/nowhere")) is None
        True
    """
    found = []
    for folder in _folders(root, "memory"):
        for limit_name, usage_name, reclaimable in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _number(folder / limit_name), _number(folder / usage_name)
            if limit is not None and usage is not None:
                # Pages of files that the kernel drops when memory is needed.
                cached = dict(
                    line.split() for line in _text(folder / "memory.stat").splitlines() if line.count(" ") == 1
                )
                found.append(max(0, limit - usage + int(cached.get(reclaimable, 0))))
    # Version 1 writes a number near 2**63 for "no limit".
    return min((free for free in found if free < 1 << 60), default=None)


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Returns how many CPUs' time this process and its group get; None without a limit.

    Args:
        root: the folder that contains proc and sys.

    Example:
        >>> cpu_limit(Path("/nowhere")) is None
        True
    """
    found = []
    for folder in _folders(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            found.append(int(quota) / int(period))
        old_quota, old_period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if old_quota is not None and old_period and old_quota > 0:
            found.append(old_quota / old_period)
    return min(found, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yields the folder of each group that this process belongs to, and of the groups around it."""
    mounted = root / "sys" / "fs" / "cgroup"
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        base = mounted / controller if controllers else mounted
        folder = base / path.strip("/")
        # Within a container, the path may be that of the host, which is not visible.
        yield from dict.fromkeys([folder, *(parent for parent in folder.parents if parent.is_relative_to(base)), base])


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text()
    return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None
