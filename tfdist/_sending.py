"""Sends functions and values to new Python processes, with the folders in which their modules are found."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import cloudpickle


def to_bytes(value: Any) -> bytes:
    """Returns a value as bytes. Functions and classes of a script or a notebook are sent with their code.

    Args:
        value: the value.

    Example:
        >>> from tfdist._sending import from_bytes, to_bytes
        >>> from_bytes(to_bytes(lambda: 3))()
        3
    """
    inner = cloudpickle.dumps(value)
    folders = [str(Path(folder).resolve()) for folder in sys.path]
    return pickle.dumps((folders, inner))


def open_folders(sent: bytes) -> bytes:
    """Adds the folders of the sender to sys.path, and returns the bytes of the value, which pickle reads.

    Args:
        sent: what to_bytes has returned.
    """
    folders, inner = pickle.loads(sent)
    sys.path[:] = [*sys.path, *(folder for folder in folders if folder not in sys.path)]
    return inner


def from_bytes(sent: bytes) -> Any:
    """Returns the value that was sent.

    Args:
        sent: what to_bytes has returned.
    """
    return pickle.loads(open_folders(sent))
