"""The signals that the launcher passes on to its tasks, and the names of signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Schedulers announce the end of a job with SIGTERM, SIGUSR1 or SIGUSR2."""

_MAY_BE_IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def signal_name(number: int) -> str:
    """Returns the name of a signal.

    Example:
        >>> signal_name(9)
        'SIGKILL'
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextmanager
def forward_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Calls `on_signal` with the number of each signal that arrives during the `with` block, instead of ending.

    Outside of the main thread, where Python allows no signal handlers, this function does nothing.

    Args:
        on_signal: called in the signal handler, so it must be reentrant.

    Example:
        >>> received = []
        >>> with forward_signals(received.append):
        ...     signal.raise_signal(signal.SIGTERM)
        >>> [signal_name(number) for number in received]
        ['SIGTERM']
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        on_signal(number)

    before = {}
    # Another library may read signals from this descriptor, and would handle those that are forwarded, too.
    wakeup = signal.set_wakeup_fd(-1)
    # A parent process may have made its children ignore SIGCHLD: the kernel would then drop the tasks' exit codes.
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in FORWARDED:
        # `nohup` makes the processes that it starts ignore SIGHUP, and the launcher must not undo this.
        if number not in _MAY_BE_IGNORED or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            # None stands for a handler that was not installed from Python, which Python cannot install again.
            signal.signal(number, handler or signal.SIG_DFL)
