"""Ends `tfdist train` with code 75 on SIGTERM while TensorFlow is being imported, which takes seconds."""

from __future__ import annotations

import os
import signal
import threading

from tfdist.cluster.exit_codes import RESTART_CODE


def leave_on_sigterm() -> None:
    """Ends this process with code 75 on SIGTERM, until `end` is called; outside of the main thread it does nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


def end() -> None:
    """Gives SIGTERM its default action again."""
    if signal.getsignal(signal.SIGTERM) is _leave:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, frame: object) -> None:
    # Not `print`: the main thread may be in the middle of one.
    os.write(2, b"tfdist train: received SIGTERM before the training has begun; exit code %d\n" % RESTART_CODE)
    os._exit(RESTART_CODE)
