"""The log files: one file for each task and start of the tasks, all in one directory."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from tfdist.cluster import Task

_OF_A_RESTART = re.compile(r"(chief|worker|ps|evaluator)-\d+\.attempt-\d+\.log")


def log_name(task: Task, attempt: int = 0) -> str:
    """Returns the name of a task's log file.

    Args:
        task: the task.
        attempt: how often the tasks had been restarted before this start.

    Example:
        >>> log_name(Task("worker", 0)), log_name(Task("worker", 0), 2)
        ('worker-0.log', 'worker-0.attempt-2.log')
    """
    return f"{task.job}-{task.index}{f'.attempt-{attempt}' if attempt else ''}.log"


def progress_name(task: Task) -> str:
    """Returns the name of the file in which a task records its steps.

    Example:
        >>> progress_name(Task("worker", 0))
        'worker-0.progress'
    """
    return f"{task.job}-{task.index}.progress"


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


def remove_old_attempts(path: Path) -> None:
    """Removes the log files that the restarts of an earlier run have left in the directory.

    The logs of the first start have the same names in every run, so that a new run replaces them. A new run may have
    fewer restarts, and a log of an earlier run must not pass for one of this run.
    """
    for file in path.iterdir():
        if _OF_A_RESTART.fullmatch(file.name):
            with contextlib.suppress(OSError):
                file.unlink()
