"""Writes the Python stacks of all threads of this process to its log, also if no Python code can run."""

from __future__ import annotations

import contextlib
import faulthandler
import sys

from tfdist._log import get_logger

# A watchdog of less would also fire when the machine is busy.
_SHORTEST_SECONDS = 5.0
# faulthandler refuses a much longer time, and the one that was set before would run out.
_LONGEST_SECONDS = 1e6


def dump_stacks(why: str) -> None:
    """Writes the Python stacks of all threads to stderr, and before them a line that says why.

    Args:
        why: completes "Python stacks of this process, because ...".
    """
    get_logger().warning("Python stacks of this process, because %s:", why)
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback(file=_log_descriptor(), all_threads=True)


class NativeWatchdog:
    """Writes the stacks if no Python code has run for some time, such as when native code holds the interpreter lock.

    It is a thread of faulthandler, which needs no Python. The watch moves its time limit ahead as long as it runs
    itself. A process has one such watchdog: `faulthandler.dump_traceback_later` of the program is replaced.
    """

    def postpone(self, seconds: float) -> None:
        """Sets the time from now after which the stacks are written.

        Args:
            seconds: at least 5 s are used, and at most a million.
        """
        with contextlib.suppress(Exception):
            seconds = min(max(seconds, _SHORTEST_SECONDS), _LONGEST_SECONDS)
            faulthandler.dump_traceback_later(seconds, file=_log_descriptor())

    def cancel(self) -> None:
        """Ends the watchdog."""
        faulthandler.cancel_dump_traceback_later()


def _log_descriptor() -> int:
    """Returns the file descriptor of stderr; notebooks replace sys.stderr by an object that has none."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2
