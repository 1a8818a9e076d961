"""Tells code of installed packages from code of the user's program."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path

_FOLDERS = tuple(
    os.path.join(folder, "")
    for folder in {*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), str(Path(__file__).parent)}
)
# Packages may be installed elsewhere, too: for the user, by the system, or in the environment below a virtual one.
_NAMES = ("site-packages", "dist-packages")


@functools.cache
def is_installed_code(file: str) -> bool:
    """Returns whether a source file belongs to Python, to an installed package, or to tfdist.

    Args:
        file: path of the file, as code objects have it.

    Example:
        >>> import json
        >>> from tfdist._installed import is_installed_code
        >>> is_installed_code(json.__file__), is_installed_code("/home/me/train.py")
        (True, False)
        >>> is_installed_code("/home/me/.local/lib/python3.11/site-packages/keras/src/models/model.py")
        True
    """
    return file.startswith(_FOLDERS) or any(name in Path(file).parts for name in _NAMES)
