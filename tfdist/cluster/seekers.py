"""One thread per peer that tries to reach it, and what is known of each so far."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable

from tfdist.cluster.probe import SILENT, attempt
from tfdist.cluster.tasks import Task

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
# For one connection: a host that drops packets is asked again rather than waited for.
_ATTEMPT_SECONDS = 2.0
# How long past the deadline a thread may take to notice.
_GRACE_SECONDS = 1.0
_NO_LOOK_UP = "the look-up of its name has not returned"


class Seekers:
    """Tries to reach every peer until it has answered once, the deadline has passed, or this is closed.

    Args:
        peers: the tasks to reach.
        deadline: in seconds of time.monotonic().
        once: whether each peer is asked only once.

    Attributes:
        wake: a socket that becomes readable whenever a peer has answered or been given up.

    Example:
        >>> with Seekers([], deadline=0.0) as seekers:
        ...     seekers.missing()
        ()
    """

    def __init__(self, peers: Iterable[Task], *, deadline: float, once: bool = False) -> None:
        self._deadline = deadline
        self._once = once
        # The first reason stands only until the resolver returns.
        self._reasons: dict[Task, str | None] = dict.fromkeys(peers, _NO_LOOK_UP)
        self._stopped = False
        self._nudges = {peer: threading.Event() for peer in self._reasons}
        self.wake, self._signal = socket.socketpair()
        self.wake.setblocking(False)
        self._signal.setblocking(False)
        # Daemons, because nothing ends a name look-up that hangs in the resolver; every other wait is bounded.
        self._threads = [
            threading.Thread(target=self._seek, args=(peer,), name=f"tfdist seeks {peer.name}", daemon=True)
            for peer in self._reasons
        ]

    def __enter__(self) -> Seekers:
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped = True
        self.nudge()
        end = min(self._deadline, time.monotonic() + _ATTEMPT_SECONDS) + _GRACE_SECONDS
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        self.wake.close()
        self._signal.close()

    def nudge(self) -> None:
        """Has every peer that has not answered tried again now, and often at first."""
        for nudged in self._nudges.values():
            nudged.set()

    def missing(self) -> tuple[tuple[Task, str], ...]:
        """Returns the peers that have not answered, each with the reason of its last attempt."""
        return tuple((peer, reason) for peer, reason in list(self._reasons.items()) if reason is not None)

    def searching(self) -> bool:
        """Whether a thread is still at work."""
        return any(thread.is_alive() for thread in self._threads)

    def _seek(self, peer: Task) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while (remaining := self._deadline - time.monotonic()) > 0:
            allowed = min(_ATTEMPT_SECONDS, remaining)
            reason = attempt(peer.address, timeout_seconds=allowed)
            # An attempt that the deadline cut short says less than the one before it.
            cut_short = reason == SILENT and allowed < _ATTEMPT_SECONDS
            if not cut_short or self._reasons[peer] == _NO_LOOK_UP:
                self._reasons[peer] = reason
            if reason is None or self._once:
                break
            nudged = self._nudges[peer].wait(min(pause, max(0.0, self._deadline - time.monotonic())))
            self._nudges[peer].clear()
            if self._stopped:
                break
            pause = _FIRST_PAUSE_SECONDS if nudged else min(2 * pause, _LONGEST_PAUSE_SECONDS)
        # Closed by now if this thread comes late from the resolver.
        with contextlib.suppress(OSError):
            self._signal.send(b"\0")
