"""Asks the addresses of silent workers whether anything answers there, in threads of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from tfdist.cluster.probe import probe
from tfdist.watch.standing import SERVES

_ATTEMPT_SECONDS = 2.0
# A reply is repeated while the worker is silent, because a machine may go down after its process.
_PAUSE_SECONDS = 2.0


class Probes:
    """The replies of the addresses of workers.

    Args:
        addresses: `host:port` of TensorFlow's server of every worker, ordered by worker.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        # By worker: the last reply and when it came; and the time at which the newest attempt began.
        self._replies: dict[int, tuple[str, float]] = {}
        self._begun: dict[int, float] = {}

    def reply(self, worker: int, *, silent_seconds: float) -> str | None:
        """Returns what the address of a worker has replied since the worker is silent, and asks again.

        Args:
            worker: number of the worker.
            silent_seconds: for how long the worker has been silent.

        Returns:
            SERVES, or the reason of `tfdist.cluster.probe`; None if no reply has come yet.
        """
        now = time.monotonic()
        # The monotonic clock may count from the start of the machine, which may have been a moment ago.
        never = float("-inf")
        reply, at = self._replies.get(worker, ("", never))
        begun = self._begun.get(worker, never)
        # `at` of an attempt that has not ended is older than its beginning.
        if now - max(begun, at) > _PAUSE_SECONDS and (at >= begun or now - begun > 10 * _ATTEMPT_SECONDS):
            self._begun[worker] = now
            name = f"tfdist-probes-{worker}"
            threading.Thread(target=self._ask, args=(worker, now), daemon=True, name=name).start()
        return reply if at > now - silent_seconds else None

    def _ask(self, worker: int, begun: float) -> None:
        answer = probe(self._addresses[worker], timeout_seconds=_ATTEMPT_SECONDS)
        if self._begun[worker] == begun:
            self._replies[worker] = answer.reason or SERVES, time.monotonic()
