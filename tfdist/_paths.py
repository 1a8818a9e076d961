"""Turns what users pass as paths into text."""

from __future__ import annotations

import os
import re

# What pathlib makes of "gs://bucket/name".
_COLLAPSED = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)(.*)", re.DOTALL)


def text_of_path(path: str | os.PathLike[str]) -> str:
    """Returns a path as text.

    Args:
        path: a path.

    Raises:
        ValueError: if pathlib has turned the address of a remote file into a local path.

    Example:
        >>> import pathlib
        >>> from tfdist._paths import text_of_path
        >>> text_of_path(pathlib.PurePosixPath("runs/model.keras"))
        'runs/model.keras'
        >>> text_of_path(pathlib.PurePosixPath("gs://bucket/model.keras"))
        Traceback (most recent call last):
        ValueError: expected the address of a remote file as text, received the path 'gs:/bucket/model.keras'; ...
    """
    text = os.fspath(path)
    collapsed = None if isinstance(path, str) else _COLLAPSED.fullmatch(text)
    if collapsed is not None:
        raise ValueError(
            f"expected the address of a remote file as text, received the path {text!r}; pass "
            f"'{collapsed[1]}://{collapsed[2]}' as a str, since pathlib removes a slash."
        )
    return text
