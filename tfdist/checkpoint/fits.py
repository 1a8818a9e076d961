"""Numbers the fits of a program that have the same directory, so that each one has snapshots of its own."""

from __future__ import annotations

import os
from typing import Protocol

from tfdist._log import get_logger


class _Closeable(Protocol):
    def close(self) -> None: ...


_ended: dict[str, int] = {}
_open: dict[str, _Closeable] = {}


def directory_of_fit(directory: str) -> str:
    """Returns the directory of the next fit of this program.

    Args:
        directory: directory of the first fit.

    Example:
        >>> from tfdist.checkpoint.fits import directory_of_fit, fit_has_ended
        >>> directory_of_fit("/tmp/run")
        '/tmp/run'
        >>> fit_has_ended("/tmp/run")
        >>> directory_of_fit("/tmp/run")
        '/tmp/run/fit-2'
    """
    number = _ended.get(os.path.realpath(directory), 0)
    return os.path.join(directory, f"fit-{number + 1}") if number else directory


def fit_has_begun(directory: str, snapshots: _Closeable) -> None:
    """Closes the snapshots of a fit of this process that has not ended, because of an error for example.

    Args:
        directory: directory of the first fit.
        snapshots: the snapshots of the fit that begins.
    """
    key = os.path.realpath(directory)
    former, _open[key] = _open.pop(key, None), snapshots
    if former is not None:
        get_logger().info("an earlier fit with the snapshots in %s did not end; this one goes on from them", directory)
        former.close()


def fit_has_ended(directory: str) -> None:
    """Notes that a fit is complete.

    Args:
        directory: directory of the first fit.
    """
    key = os.path.realpath(directory)
    _open.pop(key, None)
    _ended[key] = _ended.get(key, 0) + 1
