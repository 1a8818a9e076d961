"""Ends a process with the one that started it, however that ends. This file imports no TensorFlow."""

from __future__ import annotations

import os
import sys
import threading


def end_with_parent() -> None:
    """Ends this process as soon as its standard input is closed, which the parent keeps open while it lives."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, name="end with the parent", daemon=True).start()
