"""Sizes in bytes as they are written on the command line and in tables, such as 32M."""

from __future__ import annotations

import argparse

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_BYTES_PER_FLOAT32 = 4


def size_from_text(text: str) -> int:
    """Returns the number of bytes that a text stands for.

    Args:
        text: a whole number, optionally followed by K (1,024), M (1,024 K) or G (1,024 M).

    Raises:
        argparse.ArgumentTypeError: if the text is no such number, or stands for fewer bytes than a float32 has.

    Example:
        >>> from tfdist.bench.sizes import size_from_text
        >>> size_from_text("32M")
        33554432
    """
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    if not number.isdecimal() or int(number) * unit < _BYTES_PER_FLOAT32:
        raise argparse.ArgumentTypeError(
            f"expected a number of bytes, at least {_BYTES_PER_FLOAT32}, such as 4096 or 32M, received {text!r}."
        )
    return int(number) * unit


def size_as_text(size: int) -> str:
    """Returns the shortest text for a number of bytes, in the form that `size_from_text` reads.

    Example:
        >>> from tfdist.bench.sizes import size_as_text
        >>> size_as_text(33554432)
        '32M'
    """
    for unit, factor in reversed(_UNITS.items()):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
