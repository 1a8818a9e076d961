"""The log files: one file for each task and start of the tasks, all in one directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfdist.cluster import Task
from tfdist.cluster.progress import read_progress

_MOST_ALIKE = 1000
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


def newest_step(log_dir: Path, tasks: Iterable[Task]) -> int | None:
    """Returns the newest step that one of the tasks has recorded; None if none of them has."""
    records = (read_progress(log_dir / progress_name(task)) for task in tasks)
    return max((record.step for record in records if record), default=None)


def make_default_log_dir() -> Path:
    """Makes a new directory in `tfdist-logs`, which is named after the time and this process, and returns it.

    Raises:
        ValueError: if the directory cannot be made.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for number in range(_MOST_ALIKE):
        path = Path("tfdist-logs", name if not number else f"{name}-{number}")
        try:
            path.parent.mkdir(exist_ok=True)
            path.mkdir()
        except FileExistsError:
            # In containers the number of the process is often 1, and several of them may share the directory.
            continue
        except OSError:
            break
        return path
    raise ValueError(f"expected --log-dir to be a directory that can be written, received {str(path)!r}.")


def prepare_log_dir(path: Path | None) -> Path:
    """Makes the directory of the log files if it does not exist, and returns it; None is a new one in `tfdist-logs`.

    Raises:
        ValueError: if the directory cannot be made or written.
    """
    if path is None:
        return make_default_log_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise ValueError(f"expected --log-dir to be a directory that can be written, received {str(path)!r}.")
    return path


@contextlib.contextmanager
def only_run_in(path: Path) -> Iterator[None]:
    """Keeps other runs out of a directory of log files: each would overwrite the files of the other one.

    Raises:
        ValueError: if the logs of another run that goes on are there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(
            f"expected --log-dir to be a directory that no other run uses, received {str(path)!r}; choose another "
            "--log-dir, or wait for the end of the other run."
        ) from None
    except OSError:
        pass  # Some file systems of networks do not lock directories.
    try:
        yield
    finally:
        os.close(descriptor)


def remove_old_attempts(path: Path) -> None:
    """Removes the log files that the restarts of an earlier run have left in the directory.

    The logs of the first start have the same names in every run, so that a new run replaces them. A new run may have
    fewer restarts, and a log of an earlier run must not pass for one of this run.
    """
    for file in path.iterdir():
        if _OF_A_RESTART.fullmatch(file.name):
            with contextlib.suppress(OSError):
                file.unlink()
