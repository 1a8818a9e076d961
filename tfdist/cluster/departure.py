"""Waiting for the end of another task, for servers that live as long as their coordinator does."""

from __future__ import annotations

import time
from typing import Literal

from tfdist.cluster.address import split_address
from tfdist.cluster.errors import PeerTimeoutError
from tfdist.cluster.probe import attempt

# For one poll of a host that drops packets.
_ATTEMPT_SECONDS = 2.0


def wait_until_gone(
    address: str, *, poll_seconds: float = 0.5, misses: int = 3, appear_timeout_seconds: float | None
) -> Literal["gone"]:
    """Blocks until somebody has been seen at the address and has then failed to answer several times in a row.

    Seen is who keeps a connection open, as TensorFlow's server does. A task that is still in wait_for_peers closes it
    at once and is not seen yet: between that and its server the port is free for a while, which must not pass for the
    end. Once the address has been seen, the wait lasts as long as the other task does; that is its purpose. Any failure
    to connect counts as a miss, since the name of a finished task may vanish along with it.

    Args:
        address: the coordinator's `host:port`.
        poll_seconds: the pause between two attempts; each attempt is itself bounded.
        misses: how many failures in a row mean that it is gone.
        appear_timeout_seconds: how long to wait for it to be seen; None is without bound.

    Returns:
        "gone".

    Raises:
        PeerTimeoutError: if it was not seen in time.
        ValueError: for a bad address, or a number that is not positive.

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
        ("appear_timeout_seconds", appear_timeout_seconds),
    ):
        if value is not None and not value > 0:
            raise ValueError(f"expected {name} to be positive, received {value!r}; choose a positive number.")
    _wait_until_seen(address, poll_seconds, appear_timeout_seconds)
    missed = 0
    while missed < misses:
        time.sleep(poll_seconds)
        missed = 0 if attempt(address, timeout_seconds=_ATTEMPT_SECONDS) is None else missed + 1
    return "gone"


def _wait_until_seen(address: str, poll_seconds: float, timeout_seconds: float | None) -> None:
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    allowed = _ATTEMPT_SECONDS
    while True:
        if deadline is not None:
            # The first attempt is made however short the time is.
            allowed = max(0.01, min(_ATTEMPT_SECONDS, deadline - time.monotonic()))
        reason = attempt(address, timeout_seconds=allowed, must_stay_open=True)
        if reason is None:
            return
        remaining = poll_seconds if deadline is None else min(poll_seconds, deadline - time.monotonic())
        if remaining <= 0:
            raise PeerTimeoutError(
                f"{address} did not appear in {timeout_seconds:g} s ({reason}); start the task that listens there, "
                "or look in its output for why it ended."
            )
        time.sleep(remaining)
