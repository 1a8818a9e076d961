"""The log files: one file for each task, all in one directory."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tfdist.cluster import Task


def log_name(task: Task) -> str:
    """Returns the name of a task's log file.

    Example:
        >>> log_name(Task("worker", 0))
        'worker-0.log'
    """
    return f"{task.job}-{task.index}.log"


def default_log_dir() -> Path:
    """Returns a directory in `tfdist-logs` that is named after the time and this process.

    Example:
        >>> default_log_dir().parent.name
        'tfdist-logs'
    """
    return Path("tfdist-logs", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


def make_log_dir(path: Path) -> None:
    """Makes the directory of the log files if it does not exist.

    Raises:
        ValueError: if the directory cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise ValueError(f"expected --log-dir to be a directory that can be written, received {str(path)!r}.")
