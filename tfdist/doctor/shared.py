"""SharedDirectory: the check of the shared directory, in threads, because a dead file system may never answer."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence

from tfdist.doctor.checks.directory import NO_ANSWER, Directory
from tfdist.doctor.facts import Facts
from tfdist.doctor.finding import seconds_text
from tfdist.doctor.in_thread import InThread
from tfdist.doctor.own_files import OwnFiles
from tfdist.doctor.roles import in_order

# How long to wait for the files of another task: network file systems remember for a while what is not there.
_SIGHT_SECONDS = 5.0
_SIGHT_PAUSE_SECONDS = 0.1
_WATCH_SECONDS = 3.0
_REMOVE_SECONDS = 5.0
_LIVES_SECONDS = 0.5


class SharedDirectory:
    """Writes the files of this task, and looks for those of the others.

    Args:
        path: the directory.
        unique: a text that no other task has.
    """

    def __init__(self, path: str, unique: str) -> None:
        self._path = path
        self._files = OwnFiles(path, unique)

    def write(self, *, deadline: float) -> Directory:
        """Writes the files of this task, and returns what is known then.

        Args:
            deadline: when to give up, in seconds of time.monotonic().
        """
        start = time.monotonic()
        writing = InThread(self._files.write, name="tfdist doctor writes")
        try:
            writing.result(deadline=deadline)
        except TimeoutError:
            return Directory(path=self._path, error=_no_answer(time.monotonic() - start))
        except OSError as error:
            return Directory(path=self._path, error=error.strerror or str(error))
        return Directory(path=self._path, fsync_seconds=self._files.fsync_seconds, lock_error=self._files.lock_error)

    def start_renaming(self) -> None:
        """Replaces one file all the time, until `remove`."""
        self._files.start_renaming()

    def look(self, own: Directory, others: Sequence[Facts], *, renaming: Facts | None, deadline: float) -> Directory:
        """Returns what this task sees of the files of the others.

        Args:
            own: what `write` has returned.
            others: the facts of the other tasks.
            renaming: the task that replaces its file all the time; None if it is not known.
            deadline: when to give up, in seconds of time.monotonic().
        """
        if own.error:
            return own
        start = time.monotonic()
        thread = InThread(lambda: self._look(own, others, renaming, deadline), name="tfdist doctor looks for files")
        try:
            return thread.result(deadline=deadline + _SIGHT_PAUSE_SECONDS)
        except TimeoutError:
            return dataclasses.replace(own, error=_no_answer(time.monotonic() - start))
        except OSError as error:
            return dataclasses.replace(own, error=error.strerror or str(error))

    def _look(self, own: Directory, others: Sequence[Facts], renaming: Facts | None, deadline: float) -> Directory:
        start = time.monotonic()
        end = min(deadline, start + _SIGHT_SECONDS)
        uniques = {
            facts.identity.task: facts.identity.unique
            for facts in others
            if facts.directory is not None and not facts.directory.error
        }
        seen: dict[str, float | None] = dict.fromkeys(in_order(uniques))
        is_first = True
        while True:
            for task in [task for task, seconds in seen.items() if seconds is None]:
                if self._files.sees(uniques[task]):
                    seen[task] = 0.0 if is_first else time.monotonic() - start
            if None not in seen.values() or time.monotonic() >= end:
                break
            is_first = False
            time.sleep(_SIGHT_PAUSE_SECONDS)
        found = dataclasses.replace(own, sight_seconds=seen)
        if renaming is None or renaming.directory is None or renaming.directory.error:
            return found
        task = renaming.identity.task
        if task in seen and seen[task] is None:
            return found
        watched = self._files.watch_renames(
            renaming.identity.unique, seconds=max(0.0, min(_WATCH_SECONDS, deadline - time.monotonic()))
        )
        # A task's own lock, and one that it could not take, say nothing.
        unique = renaming.identity.unique
        lock = self._files.lock_of(unique) if not renaming.directory.lock_error else ""
        if lock == "free" and self._files.watch_renames(unique, seconds=_LIVES_SECONDS).versions < 2:
            # The lock of a task that has been killed is free.
            lock = ""
        return dataclasses.replace(found, renames_of=task, renames=watched, foreign_lock=lock)

    def remove(self) -> None:
        """Removes the files of this task, also if a signal has interrupted `write`."""
        thread = InThread(self._files.remove, name="tfdist doctor removes")
        thread.wait(deadline=time.monotonic() + _REMOVE_SECONDS)


def _no_answer(seconds: float) -> str:
    return f"{NO_ANSWER} for {seconds_text(seconds)}"


def is_remote(directory: str) -> bool:
    """Returns whether a directory is the address of an object store, which is not mounted here.

    Example:
        >>> is_remote("gs://bucket/model"), is_remote("/mnt/model")
        (True, False)
    """
    return "://" in os.fspath(directory)
