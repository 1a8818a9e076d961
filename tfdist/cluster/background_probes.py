"""Connects to each peer from a separate thread until the peer answers, and records why a peer has not answered."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable

from tfdist.cluster.greeting import Greeting
from tfdist.cluster.incarnations import foreign_reason, is_foreign, is_replaced
from tfdist.cluster.probe import CLOSED, NO_REPLY, REFUSED, SILENT, probe
from tfdist.cluster.tasks import Task, same_task
from tfdist.cluster.wrong_indices import another_task, is_another_task

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
# The time limit of one attempt. Short attempts notice a host that has just come up sooner than one long attempt does.
_ATTEMPT_SECONDS = 2.0
# How long after the deadline a thread may take to end.
_JOIN_SECONDS = 1.0
_NO_LOOK_UP = "the look-up of its name has not returned"


class BackgroundProbes:
    """Probes every peer until it has answered once, the deadline has passed, or the `with` block ends.

    Args:
        peers: the tasks to connect to.
        deadline: the end of all attempts, in seconds of time.monotonic().
        once: whether each peer gets a single attempt.
        incarnation: the incarnation of this task, which a peer that says its own must share; None accepts any.

    Attributes:
        replaced_by: the greeting of a task of a later start of the same launch; None if none has answered.
        wake: a socket that becomes readable whenever the thread of a peer ends.

    Example:
        >>> with BackgroundProbes([], deadline=0.0) as probes:
        ...     probes.missing()
        ()
    """

    def __init__(
        self, peers: Iterable[Task], *, deadline: float, once: bool = False, incarnation: str | None = None
    ) -> None:
        self._deadline = deadline
        self._once = once
        self._incarnation = incarnation
        self.replaced_by: Greeting | None = None
        # This initial reason is replaced as soon as the resolver returns.
        self._reasons: dict[Task, str | None] = dict.fromkeys(peers, _NO_LOOK_UP)
        self._stopped = False
        self._retries = {peer: threading.Event() for peer in self._reasons}
        self.wake, self._wake_sender = socket.socketpair()
        self.wake.setblocking(False)
        self._wake_sender.setblocking(False)
        # Daemon threads, because nothing ends a name look-up that hangs in the resolver. All other waits are bounded.
        self._threads = [
            threading.Thread(target=self._probe, args=(peer,), name=f"tfdist probes {peer.name}", daemon=True)
            for peer in self._reasons
        ]

    def __enter__(self) -> BackgroundProbes:
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped = True
        self.retry_now()
        end = min(self._deadline, time.monotonic() + _ATTEMPT_SECONDS) + _JOIN_SECONDS
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        self.wake.close()
        self._wake_sender.close()

    def retry_now(self) -> None:
        """Ends the current pause of every peer, and makes the later pauses short again."""
        for retry in self._retries.values():
            retry.set()

    def missing(self) -> tuple[tuple[Task, str], ...]:
        """Returns the peers that have not answered, each with the reason of its last attempt."""
        return tuple((peer, reason) for peer, reason in list(self._reasons.items()) if reason is not None)

    def running(self) -> bool:
        """Returns whether any thread still probes."""
        return any(thread.is_alive() for thread in self._threads)

    def _probe(self, peer: Task) -> None:
        pause = _FIRST_PAUSE_SECONDS
        # Why the task that answered last is not the peer; None if no task of another incarnation has answered.
        foreign: str | None = None
        while (remaining := self._deadline - time.monotonic()) > 0:
            allowed = min(_ATTEMPT_SECONDS, remaining)
            answer = probe(peer.address, timeout_seconds=allowed)
            reason = answer.reason
            if answer.task_name is not None:
                foreign = None
                if is_replaced(self._incarnation, answer.incarnation):
                    self.replaced_by = Greeting(answer.task_name, incarnation=answer.incarnation)
                if is_foreign(self._incarnation, answer.incarnation):
                    reason = foreign = foreign_reason(self._incarnation, answer.incarnation, answer.task_name)
                elif not same_task(answer.task_name, peer.name):
                    reason = another_task(answer.task_name)
            elif answer.serves and foreign is not None:
                # A task of another incarnation waited there, and may have started TensorFlow's server meanwhile. The
                # peer itself says its incarnation before it starts its server. Between the two, nothing answered.
                reason = foreign
            # If the deadline cut the attempt short, "no reply" says less than the reason of the previous attempt.
            cut_short = reason in (NO_REPLY, SILENT) and allowed < _ATTEMPT_SECONDS
            # A process with a wrong index that has ended since explains more than the refusal that it leaves behind.
            less_telling = cut_short or (reason in (REFUSED, CLOSED) and is_another_task(self._reasons[peer] or ""))
            if not less_telling or self._reasons[peer] == _NO_LOOK_UP:
                self._reasons[peer] = reason
            if reason is None or self._once:
                break
            if self.replaced_by is not None:
                with contextlib.suppress(OSError):
                    self._wake_sender.send(b"\0")
            retry = self._retries[peer].wait(min(pause, max(0.0, self._deadline - time.monotonic())))
            self._retries[peer].clear()
            if self._stopped:
                break
            pause = _FIRST_PAUSE_SECONDS if retry else min(2 * pause, _LONGEST_PAUSE_SECONDS)
        # If the resolver returns after the end of the `with` block, the socket is already closed.
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"\0")
