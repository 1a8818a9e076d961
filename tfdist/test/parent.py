"""Ends a process with the one that started it, however that ends. This file imports no TensorFlow."""

from __future__ import annotations

import os
import threading


def end_with_parent() -> None:
    """Ends this process as soon as its standard input is closed, which the parent keeps open while it lives."""

    def watch() -> None:
        # Not sys.stdin, whose lock this thread would still hold when Python ends, which Python takes for an error.
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="end with the parent", daemon=True).start()
