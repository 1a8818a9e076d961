"""Ends this process with the exit code that asks for a restart."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading

from tfdist.cluster.exit_codes import RESTART_CODE

_FLUSH_SECONDS = 2.0


def leave() -> None:
    """Ends this process at once with exit code 75, after writing what is buffered for stdout and stderr.

    Threads that hang do not delay the end: destructors and functions of atexit are not called.
    """
    # A thread that hangs may hold the lock of a stream.
    flushing = threading.Thread(target=_flush, daemon=True)
    flushing.start()
    flushing.join(_FLUSH_SECONDS)
    os._exit(RESTART_CODE)


def _flush() -> None:
    for handler in list(logging.getLogger("tfdist").handlers):
        with contextlib.suppress(Exception):
            handler.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
