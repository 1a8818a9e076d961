"""Notes the signals that ask this process to end, so that its files can be removed before it does."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Yields a list to which SIGINT and SIGTERM are appended. Another thread than the main one notes nothing.

    An exception that a signal handler raises, such as KeyboardInterrupt, may come between making a file and noting
    that it must be removed, and is lost in a callback of the garbage collector.

    Example:
        >>> with noted_signals() as received:
        ...     received
        []
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    # Another part of the program, such as AutoResume, reads the numbers of the signals in a thread of its own, maybe
    # only after the handlers below have been put back.
    wakeup = signal.set_wakeup_fd(-1)
    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield received
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
