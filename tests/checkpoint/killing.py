"""Kills a process at one of the system calls that it makes on files."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

CALLS = ("mkdir", "open", "write", "fsync", "posix_fallocate", "rename", "replace", "unlink", "rmdir", "close")


def at_call(number: int, fault: Callable[[], None], seen: list[str] | None = None) -> None:
    """Patches `os` of this process, so that a fault happens before its call of this number, counted from 0.

    Of a write, the first half happens.

    Args:
        number: number of the call.
        fault: what happens.
        seen: receives the names of all calls.
    """
    count = 0

    def patched(name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            here, count = count, count + 1
            if seen is not None:
                seen.append(name)
            if here == number:
                if name == "write":
                    stock(args[0], args[1][: len(args[1]) // 2])
                fault()
            return stock(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, patched(name, getattr(os, name)))


def killed() -> None:
    """Ends this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def no_space() -> None:
    """Raises the error of a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")
