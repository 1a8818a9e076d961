"""Waits until another task has shut down, so that a worker or ps can serve for as long as its coordinator runs."""

from __future__ import annotations

import time
from typing import Literal

from tfdist.cluster.address import split_address
from tfdist.cluster.errors import PeerTimeoutError
from tfdist.cluster.probe import SILENT, probe_address

# The time limit of one attempt to connect, for a host that drops packets.
_ATTEMPT_SECONDS = 2.0


def wait_until_gone(
    address: str,
    *,
    poll_seconds: float = 0.5,
    misses: int = 3,
    appear_poll_seconds: float | None = None,
    appear_timeout_seconds: float | None,
) -> Literal["gone"]:
    """Returns once a server has been seen at the address and has then failed to answer several times in a row.

    Only TensorFlow's server counts as seen. A task that is still in wait_for_peers does not count: its port is free
    for a moment before TensorFlow's server takes the port over, and this moment must not be mistaken for the end of the
    task. Once a server has been seen, the wait has no deadline, since the training may take any time. Every failure to
    connect counts as a miss, since the host name of a task that has ended may no longer resolve. A process that accepts
    connections and does not reply has not ended: it may be stopped for a while.

    Args:
        address: the coordinator's `host:port`.
        poll_seconds: the pause between two attempts; each attempt has a time limit of its own.
        misses: the number of consecutive failures after which the task counts as gone.
        appear_poll_seconds: the pause between two attempts until a server is seen; None is poll_seconds. A server that
            lives shorter than this may never be seen.
        appear_timeout_seconds: how long to wait until a server is seen; None waits without a limit.

    Returns:
        "gone".

    Raises:
        PeerTimeoutError: if no server was seen in time.
        ValueError: if the text is not an address, or a number is not positive.

    Example:
        >>> wait_until_gone("localhost:1", poll_seconds=0.01, appear_timeout_seconds=0.05)
        Traceback (most recent call last):
        ...
        tfdist.cluster.errors.PeerTimeoutError: localhost:1 did not appear in 0.05 s (connection refused); ...
    """
    split_address(address)
    for name, value in (
        ("poll_seconds", poll_seconds),
        ("misses", misses),
        ("appear_poll_seconds", appear_poll_seconds),
        ("appear_timeout_seconds", appear_timeout_seconds),
    ):
        if value is not None and not value > 0:
            raise ValueError(f"expected {name} to be positive, received {value!r}.")
    _wait_until_seen(address, appear_poll_seconds or poll_seconds, appear_timeout_seconds)
    missed = 0
    while missed < misses:
        time.sleep(poll_seconds)
        reason = probe_address(address, timeout_seconds=_ATTEMPT_SECONDS)
        missed = 0 if reason in (None, SILENT) else missed + 1
    return "gone"


def _wait_until_seen(address: str, poll_seconds: float, timeout_seconds: float | None) -> None:
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    allowed = _ATTEMPT_SECONDS
    while True:
        if deadline is not None:
            # The lower bound allows a first attempt, however short the timeout is.
            allowed = max(0.01, min(_ATTEMPT_SECONDS, deadline - time.monotonic()))
        reason = probe_address(address, timeout_seconds=allowed, must_serve=True)
        if reason is None:
            return
        remaining = poll_seconds if deadline is None else min(poll_seconds, deadline - time.monotonic())
        if remaining <= 0:
            raise PeerTimeoutError(
                f"{address} did not appear in {timeout_seconds:g} s ({reason}); start the task that listens there, "
                "or look in its output for why it ended."
            )
        time.sleep(remaining)
