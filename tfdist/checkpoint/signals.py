"""Calls a function in a thread when this process receives a signal, also while Python waits inside TensorFlow.

Python runs signal handlers in the main thread, between two of its own instructions. A main thread that waits inside
TensorFlow, for another worker for example, runs none. The C part of Python, however, writes the number of each signal
to a file descriptor at once, which a thread reads here. This file is independent of TensorFlow.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence

from tfdist._log import get_logger

_handled: set[int] = set()
_guard = threading.Lock()
_reader: int | None = None


def signal_numbers(names: Sequence[str]) -> tuple[int, ...]:
    """Returns the numbers of signals.

    Args:
        names: names such as "SIGTERM".

    Raises:
        ValueError: if there is no signal of a name, or no process can handle it.

    Example:
        >>> from tfdist.checkpoint.signals import signal_numbers
        >>> signal_numbers(["SIGTERM"])
        (15,)
    """
    found = []
    for name in names:
        number = getattr(signal, name, None) if name.startswith("SIG") and not name.startswith("SIG_") else None
        if number is None or number in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(f"expected the name of a signal that can be handled, such as SIGTERM, received {name!r}.")
        found.append(int(number))
    return tuple(found)


def call_on_signals(names: Sequence[str], callback: Callable[[str], None]) -> list[str]:
    """Calls a function in a thread for each signal, and returns the names of the signals that it handles.

    A signal that the program handles itself is left to the program, and the log says so. Outside of the main thread no
    signals are handled.

    Args:
        names: names of the signals.
        callback: receives the name of a signal. Only the callback of the first call of this function is called.
    """
    global _reader
    if threading.current_thread() is not threading.main_thread():
        get_logger().warning("no signal is handled, since this is not the main thread of the program")
        return []
    with _guard:
        handled = []
        for name, number in zip(names, signal_numbers(names), strict=True):
            if number not in _handled:
                if signal.getsignal(number) not in (signal.SIG_DFL, None):
                    get_logger().warning("%s is left to the program, which has a handler of its own", name)
                    continue
                signal.signal(number, _no_action)
                _handled.add(number)
            handled.append(name)
        if _handled and _reader is None:
            _reader, writer = os.pipe()
            os.set_blocking(writer, False)
            former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            thread = threading.Thread(
                target=_read, args=(_reader, former, callback), daemon=True, name="tfdist-signals"
            )
            thread.start()
        return handled


def _no_action(number: int, frame: object) -> None:
    """Handles a signal, so that it does not end the process."""


def _read(reader: int, former: int, callback: Callable[[str], None]) -> None:
    while True:
        for number in os.read(reader, 64):
            if former >= 0:
                # Another library, such as asyncio, reads the numbers of the signals, too.
                os.write(former, bytes([number]))
            # Another part of the program may have replaced the handler since.
            if signal.getsignal(number) is _no_action:
                callback(signal.Signals(number).name)
