"""Sends functions and values to new Python processes, with the folders in which their modules are found."""

from __future__ import annotations

import io
import linecache
import marshal
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import cloudpickle


class _Pickler(cloudpickle.Pickler):
    """Pickles code with the name of its file, which cloudpickle 3.1 leaves out, so that tracebacks show its lines."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.files: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            self.files.add(obj.co_filename)
            return marshal.loads, (marshal.dumps(obj),)
        return super().reducer_override(obj)


def to_bytes(value: Any) -> bytes:
    """Returns a value as bytes. Functions and classes of a script or a notebook are sent with their code.

    Args:
        value: the value.

    Example:
        >>> from tfdist._sending import from_bytes, to_bytes
        >>> from_bytes(to_bytes(lambda: 3))()
        3
    """
    inner = io.BytesIO()
    pickler = _Pickler(inner)
    pickler.dump(value)
    folders = [str(Path(folder).resolve()) for folder in sys.path]
    # The lines of a cell are only in the memory of the process of the notebook.
    cells = {name: linecache.getlines(name) for name in sorted(pickler.files) if not Path(name).exists()}
    return pickle.dumps((folders, cells, inner.getvalue()))


def open_folders(sent: bytes) -> bytes:
    """Adds the folders of the sender to sys.path, and returns the bytes of the value, which pickle reads.

    Tracebacks show the lines of the sender's cells afterwards.

    Args:
        sent: what to_bytes has returned.
    """
    folders, cells, inner = pickle.loads(sent)
    for name, lines in cells.items():
        # A time of None says that there is no file to compare the lines with.
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    sys.path[:] = [*sys.path, *(folder for folder in folders if folder not in sys.path)]
    return inner


def from_bytes(sent: bytes) -> Any:
    """Returns the value that was sent.

    Args:
        sent: what to_bytes has returned.
    """
    return pickle.loads(open_folders(sent))
