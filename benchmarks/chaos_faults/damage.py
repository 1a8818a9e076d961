"""Damages files, as a disk or a file system may."""

from __future__ import annotations

import os
from pathlib import Path

HOW = ("truncated", "a bit flipped", "removed")


def damage(path: Path, how: str, moment: float) -> str:
    """Damages a file and returns what was done, in words.

    Args:
        path: the file.
        how: one of HOW.
        moment: the place in the file, from 0 (its beginning) to 1 (its end).
    """
    if how == "removed":
        path.unlink()
        return f"removed {path.name}"
    bits = 8 * path.stat().st_size
    place, bit = divmod(int(moment * bits), 8)
    if how == "truncated":
        os.truncate(path, place)
        return f"truncated {path.name} to {place} bytes"
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ (1 << bit)]))
    return f"flipped bit {bit} of byte {place} of {path.name}"
