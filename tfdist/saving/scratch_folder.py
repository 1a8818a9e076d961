"""Makes folders for files that are being written, and removes those whose writers were killed.

A writer locks its folder until it has finished. A folder that nobody has locked was left by a writer that was killed.
This file is independent of TensorFlow.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator

PREFIX = ".tfdist-"
_LOCK = "lock"
_FILES = "files"
# A writer that lives puts its lock into its folder at once.
_SECONDS_WITHOUT_LOCK = 3600.0


@contextlib.contextmanager
def scratch_folder(parent: str, prefix: str = PREFIX) -> Iterator[str]:
    """Yields an empty folder within a hidden folder of `parent`; after the body, both are removed.

    The folder may be renamed by the body. Folders of killed writers in `parent` are removed first.

    Args:
        parent: an existing folder, on the file system to which the files will be renamed.
        prefix: beginning of the name of the hidden folder.

    Raises:
        OSError: if the folder cannot be made.

    Example:
        >>> import os, tempfile
        >>> from tfdist.saving.scratch_folder import scratch_folder
        >>> parent = tempfile.mkdtemp()
        >>> with scratch_folder(parent) as folder:
        ...     open(os.path.join(folder, "numbers.txt"), "w").close()
        ...     os.rename(os.path.join(folder, "numbers.txt"), os.path.join(parent, "numbers.txt"))
        >>> os.listdir(parent)
        ['numbers.txt']
    """
    remove_abandoned(parent, prefix)
    hidden, lock = _locked_folder(parent, prefix)
    try:
        files = os.path.join(hidden, _FILES)
        os.mkdir(files)
        yield files
    finally:
        _remove(hidden)
        os.close(lock)


def remove_abandoned(parent: str, prefix: str = PREFIX) -> list[str]:
    """Removes the folders of writers that were killed, and returns their names.

    Folders of writers that live are kept, on any host, as far as the file system has locks. Without locks, nothing is
    removed. Where everyone may write, as in /tmp, folders of other users are kept: their owners could replace them by a
    link to a folder of this user while they are removed.

    Args:
        parent: an existing folder.
        prefix: beginning of the names of the folders.

    Example:
        >>> import tempfile
        >>> from tfdist.saving.scratch_folder import remove_abandoned
        >>> remove_abandoned(tempfile.mkdtemp())
        []
    """
    is_public = bool(os.stat(parent).st_mode & stat.S_IWOTH)
    with os.scandir(parent) as entries:
        found = [
            entry.path
            for entry in entries
            if entry.name.startswith(prefix)
            and entry.is_dir(follow_symlinks=False)
            and (not is_public or _is_own(entry))
        ]
    return [os.path.basename(path) for path in sorted(found) if _remove_if_abandoned(path)]


def _is_own(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:
        # Its writer has finished, such as another worker on this host.
        return False


def _remove_if_abandoned(hidden: str) -> bool:
    try:
        lock = os.open(os.path.join(hidden, _LOCK), os.O_RDWR)
    except FileNotFoundError:
        return _remove_if_old(hidden)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Its writer lives, or the file system has no locks.
        return False
    else:
        return _remove(hidden)
    finally:
        os.close(lock)


def _remove(hidden: str) -> bool:
    """Removes a folder, its lock last: if this process is killed, the next writer removes the rest."""
    shutil.rmtree(os.path.join(hidden, _FILES), ignore_errors=True)
    try:
        if os.listdir(hidden) == [_LOCK]:
            os.unlink(os.path.join(hidden, _LOCK))
        os.rmdir(hidden)
    except OSError:
        return False
    return True


def _remove_if_old(hidden: str) -> bool:
    """Removes a folder whose writer was killed before it locked the folder."""
    try:
        if time.time() - os.stat(hidden).st_mtime < _SECONDS_WITHOUT_LOCK:
            return False
        # Unlike rmtree, rmdir fails if a writer has put its lock into the folder meanwhile.
        os.rmdir(hidden)
    except OSError:
        return False
    return True


def _locked_folder(parent: str, prefix: str) -> tuple[str, int]:
    """Returns a new folder and the open file whose lock belongs to this process."""
    while True:
        hidden = tempfile.mkdtemp(prefix=prefix, dir=parent)
        path = os.path.join(hidden, _LOCK)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            # The disk is full, for example.
            os.rmdir(hidden)
            raise
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another process looks whether the folder is abandoned, and removes it.
            os.close(lock)
            continue
        except OSError:
            # The file system has no locks, so that nobody removes the folder.
            return hidden, lock
        if os.path.exists(path):
            return hidden, lock
        os.close(lock)
