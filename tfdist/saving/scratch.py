"""Writes files to a scratch folder and then renames them, so that no program reads an incomplete file."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator

import tensorflow as tf

from tfdist._paths import text_of_path
from tfdist.saving.scratch_folder import PREFIX, scratch_folder

# Other remote file systems have no folders, and rename the files of a folder one by one, in any order.
_RENAME_FOLDERS = ("file://", "hdfs://", "viewfs://")


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields a scratch name to write to, and renames the written files to `path` unless the body fails.

    One process writes `path`; for several workers see written_by_chief.

    Args:
        path: the name of a file or folder, or the prefix of several files. Its parent folder is created.

    Example:
        >>> import os, tempfile
        >>> from tfdist.saving import replaced
        >>> path = os.path.join(tempfile.mkdtemp(), "numbers.txt")
        >>> with replaced(path) as scratch, open(scratch, "w") as file:
        ...     _ = file.write("1 2 3")
        >>> open(path).read()
        '1 2 3'
    """
    path = path_to_write(path)
    with scratch_beside(path) as scratch:
        yield scratch
        put_in_place(os.path.dirname(scratch), os.path.dirname(path))


def path_to_write(path: str | os.PathLike[str]) -> str:
    """Returns a path whose last part is a name, or is empty for files in the folder.

    Args:
        path: a path.

    Example:
        >>> from tfdist.saving.scratch import path_to_write
        >>> path_to_write("runs/model.keras"), path_to_write("runs/..")
        ('runs/model.keras', 'runs/../')
    """
    name = text_of_path(path)
    return os.path.join(name, "") if os.path.basename(name) in (os.curdir, os.pardir) else name


@contextlib.contextmanager
def scratch_beside(path: str) -> Iterator[str]:
    """Yields a name in a hidden folder beside `path`; the hidden folder is removed after the body."""
    # Renaming within the parent folder does not cross file systems. Patterns such as `*` do not match a hidden folder.
    folder = os.path.dirname(path)
    if "://" not in path:
        os.makedirs(folder or ".", exist_ok=True)
        with scratch_folder(folder or ".") as scratch:
            yield os.path.join(scratch, os.path.basename(path))
        return
    scratch = os.path.join(folder, f"{PREFIX}{uuid.uuid4().hex[:8]}")
    tf.io.gfile.makedirs(scratch)
    try:
        yield os.path.join(scratch, os.path.basename(path))
    finally:
        tf.io.gfile.rmtree(scratch)


@contextlib.contextmanager
def scratch_elsewhere(path: str) -> Iterator[str]:
    """Yields a name with the same last part as `path` in a temporary folder, for files that are discarded."""
    with scratch_folder(tempfile.gettempdir(), "tfdist-scratch-") as scratch:
        yield os.path.join(scratch, os.path.basename(path))


def put_in_place(scratch: str, folder: str) -> None:
    """Moves the content of a scratch folder, each file atomically; files that refer to other files are moved last.

    Args:
        scratch: the folder to move from.
        folder: the folder to move to.
    """
    remote = "://" in folder
    renames_folders = not remote or folder.startswith(_RENAME_FOLDERS)
    names = tf.io.gfile.listdir(scratch) if remote else os.listdir(scratch)
    for name in sorted((name.rstrip("/") for name in names), key=_when_to_move):
        source, target = os.path.join(scratch, name), os.path.join(folder, name)
        if tf.io.gfile.isdir(source) and (tf.io.gfile.exists(target) or not renames_folders):
            # As when Keras writes to an existing folder, files that the new content does not replace are kept.
            tf.io.gfile.makedirs(target)
            put_in_place(source, target)
        elif remote:
            tf.io.gfile.rename(source, target, overwrite=True)
        else:
            _replace(source, target)


def _replace(source: str, target: str) -> None:
    """Moves a file or folder; a file keeps the permissions and the symbolic link of the file that it replaces."""
    if os.path.isfile(source) and os.path.isfile(target):
        with contextlib.suppress(OSError):
            os.chmod(source, stat.S_IMODE(os.stat(target).st_mode))
    if not os.path.islink(target):
        os.replace(source, target)
        return
    real = os.path.realpath(target)
    try:
        os.replace(source, real)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with scratch_folder(os.path.dirname(real)) as beside:
            copy = os.path.join(beside, os.path.basename(real))
            shutil.copy(source, copy)
            os.replace(copy, real)


def _when_to_move(name: str) -> tuple[int, str]:
    """Returns a sort key by which files that refer to others (index, SavedModel's graph, `checkpoint`) come last."""
    return (2 if name == "checkpoint" else int(name.endswith((".index", ".json", ".pb"))), name)
