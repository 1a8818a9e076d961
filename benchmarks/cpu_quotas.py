"""Gives processes a share of a core: cgroups of Linux, version 1 or 2. It needs root.

A process enters its group by itself:

    with cpu_quotas([0.4, 0.1]) as groups:
        subprocess.Popen([..., str(groups[0])])  # the process calls enter(groups[0])
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

# Short, so that a process is slow all the time instead of stopped for long.
PERIOD_US = 10_000
VERSION_1, VERSION_2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def cpu_quotas(cores: Sequence[float]) -> Iterator[list[Path]]:
    """Makes groups of processes for the body of a `with` statement, whose processes must have ended at its end.

    Args:
        cores: how many cores' time each group has; at least 0.1.

    Yields:
        The folder of each group, for `enter`.

    Raises:
        SystemExit: no cgroup can be made.
    """
    is_version_2 = (VERSION_2 / "cgroup.controllers").exists()
    parent = (VERSION_2 if is_version_2 else VERSION_1) / f"tfdist-{os.getpid()}"
    folders = [parent / str(number) for number in range(len(cores))]
    try:
        try:
            parent.mkdir()
            if is_version_2:
                (parent / "cgroup.subtree_control").write_text("+cpu")
            for folder, share in zip(folders, cores, strict=True):
                folder.mkdir()
                quota = int(share * PERIOD_US)
                if is_version_2:
                    (folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
                else:
                    (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                    (folder / "cpu.cfs_quota_us").write_text(str(quota))
        except OSError as error:
            raise SystemExit(
                f"expected a cgroup with a quota of CPU time, received {error}, run it as root."
            ) from error
        yield folders
    finally:
        for folder in (*folders, parent):
            remove(folder)


def enter(folder: Path) -> None:
    """Moves this process with all its threads into a group of `cpu_quotas`."""
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def remove(folder: Path) -> None:
    """Removes the folder of a group, if there is one, as soon as the kernel has forgotten its last process."""
    for _ in range(50):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    folder.rmdir()
