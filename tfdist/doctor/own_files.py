"""OwnFiles: the files that one task writes into the shared directory, and what it sees of those of the others."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time

from tfdist.doctor.checks.directory import Renames

PREFIX = ".tfdist-doctor-"
_TOKEN, _RENAMED, _LOCK = "token", "renamed", "lock"
_TOKEN_BYTES = 1 << 20
_RENAME_PAUSE_SECONDS = 0.005
_READ_PAUSE_SECONDS = 0.001
# Reading ends when this many contents were seen.
_ENOUGH_VERSIONS = 20
# A folder as old as this was left by a process that was killed.
_ABANDONED_SECONDS = 86400.0


class OwnFiles:
    """A hidden folder of this task in a shared directory, with a file that is there, one that is replaced, and a lock.

    All functions may hang as long as the file system does.

    Args:
        directory: an existing directory.
        unique: a text that no other task has.

    Attributes:
        fsync_seconds: how long it took to bring the first file to the disk.
        lock_error: why the lock could not be taken; "" if it was.

    Example:
        >>> import tempfile
        >>> directory = tempfile.mkdtemp()
        >>> own, other = OwnFiles(directory, "a"), OwnFiles(directory, "b")
        >>> own.write(), other.write()
        (None, None)
        >>> own.sees("b"), own.sees("c"), own.lock_of("b")
        (True, False, 'held')
        >>> own.remove(), other.remove(), os.listdir(directory)
        (None, None, [])
    """

    def __init__(self, directory: str, unique: str) -> None:
        self.fsync_seconds = 0.0
        self.lock_error = ""
        self._directory = directory
        self._unique = unique
        self._folder = self._folder_of(unique)
        self._lock: int | None = None
        self._ended = threading.Event()
        # `remove` may be called while `write` runs in another thread.
        self._guard = threading.Lock()
        self._renaming: threading.Thread | None = None

    def _folder_of(self, unique: str) -> str:
        return os.path.join(self._directory, PREFIX + unique)

    def write(self) -> None:
        """Writes the files.

        Raises:
            OSError: if a file cannot be written.
        """
        with self._guard:
            if not self._ended.is_set():
                self._write()

    def _write(self) -> None:
        _remove_abandoned(self._directory)
        os.mkdir(self._folder, 0o755)
        start = time.monotonic()
        line = self._unique.encode() + b"\n"
        with open(os.path.join(self._folder, _TOKEN), "xb") as file:
            file.write(line + b"\0" * (_TOKEN_BYTES - len(line)))
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self._folder)
        self.fsync_seconds = time.monotonic() - start
        self._replace(0)
        try:
            self._lock = os.open(os.path.join(self._folder, _LOCK), os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.lock_error = error.strerror or str(error)

    def start_renaming(self) -> None:
        """Replaces one file all the time, in a thread, until `remove`."""
        self._renaming = threading.Thread(target=self._rename, name="tfdist doctor renames", daemon=True)
        self._renaming.start()

    def sees(self, unique: str) -> bool:
        """Returns whether the files of another task are here.

        Args:
            unique: the unique text of the other task.
        """
        try:
            with open(os.path.join(self._folder_of(unique), _TOKEN), "rb") as file:
                return file.readline(200).rstrip() == unique.encode()
        except OSError:
            return False

    def watch_renames(self, unique: str, *, seconds: float) -> Renames:
        """Reads the file that another task replaces, until enough contents were seen.

        Args:
            unique: the unique text of the other task.
            seconds: how long to read at most.
        """
        path = os.path.join(self._folder_of(unique), _RENAMED)
        counts = dict.fromkeys(("reads", "missing", "torn", "backwards", "stale"), 0)
        seen: set[int] = set()
        newest = -1
        end = time.monotonic() + seconds
        while len(seen) < _ENOUGH_VERSIONS and time.monotonic() < end:
            counts["reads"] += 1
            try:
                with open(path, "rb") as file:
                    number = _number_in(file.read())
            except FileNotFoundError:
                counts["missing"] += 1
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                counts["stale"] += 1
            else:
                counts["torn"] += number is None
                if number is not None:
                    counts["backwards"] += number < newest
                    newest = max(newest, number)
                    seen.add(number)
            time.sleep(_READ_PAUSE_SECONDS)
        return Renames(versions=len(seen), **counts)

    def lock_of(self, unique: str) -> str:
        """Returns "held" if another task's lock is respected, "free" if this task can take it too, "" if unknown.

        Args:
            unique: the unique text of the other task.
        """
        try:
            other = os.open(os.path.join(self._folder_of(unique), _LOCK), os.O_RDWR)
        except OSError:
            return ""
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "held"
        except OSError:
            return ""
        finally:
            os.close(other)
        return "free"

    def remove(self) -> None:
        """Removes all files of this task. It may be called again."""
        self._ended.set()
        if self._renaming is not None and self._renaming.ident is not None:
            self._renaming.join()
        with self._guard:
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _rename(self) -> None:
        number = 1
        # An error ends the renames, which the readers notice.
        with contextlib.suppress(OSError):
            while not self._ended.wait(_RENAME_PAUSE_SECONDS):
                self._replace(number)
                number += 1

    def _replace(self, number: int) -> None:
        path = os.path.join(self._folder, _RENAMED)
        with open(f"{path}~", "wb") as file:
            file.write(_content(number))
        os.replace(f"{path}~", path)


def _content(number: int) -> bytes:
    body = b"%020d\n" % number * 1000
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _number_in(content: bytes) -> int | None:
    """Returns the number that `_content` was given; None if the content is damaged."""
    digest, _, body = content.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    return int(body[:20])


def _sync_folder(folder: str) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        # Some network file systems have no fsync of folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(opened)


def _remove_abandoned(directory: str) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS:
                        shutil.rmtree(entry.path, ignore_errors=True)
