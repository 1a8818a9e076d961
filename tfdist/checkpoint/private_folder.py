"""Folders in a place where every user of the host may write, such as /dev/shm, that only this user can change.

The names of these folders have to be predictable, since the next process looks for them. Another user may therefore
make such a folder, or a symbolic link of this name, first. This file is independent of TensorFlow.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def is_private(path: Path) -> bool:
    """Returns whether a path is a folder of this user, no link to one, in which nobody else may write.

    Args:
        path: the path, which may not exist.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from tfdist.checkpoint.private_folder import is_private
        >>> is_private(Path(tempfile.mkdtemp()))
        True
        >>> is_private(Path("/tmp"))
        False
    """
    try:
        status = os.lstat(path)
    except OSError:
        return False
    may_be_written = stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not may_be_written


def make_private(path: Path) -> None:
    """Makes a folder that only this user may read and write, unless there is one.

    Args:
        path: the folder; its parent exists.

    Raises:
        OSError: if something else has this name, such as a folder of another user.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from tfdist.checkpoint.private_folder import make_private
        >>> make_private(Path(tempfile.mkdtemp(), "a"))
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        # In a folder with the sticky bit, nobody else can replace a folder of this user after this check.
        if not is_private(path):
            raise PermissionError(
                f"expected {str(path)!r} to be a folder that only this user can change, received one of another "
                "user, a link, or a folder that others may write; remove it."
            ) from None
