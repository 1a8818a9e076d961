"""Waiting until every peer is up, before TensorFlow's own start-up waits for them without bound and in silence."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from tfdist._log import get_logger
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.errors import PeerTimeoutError
from tfdist.cluster.listener import listen
from tfdist.cluster.probe import REFUSED, SILENT, UNRESOLVED, UNROUTED
from tfdist.cluster.seekers import Seekers
from tfdist.cluster.tasks import Task

_ADVICE = {
    REFUSED: "start it, or look in its output for why it ended",
    UNRESOLVED: "check the host name and that this machine's DNS knows it",
    SILENT: "check that its machine is up and that no firewall drops the port",
    UNROUTED: "check the address and the network between the two machines",
}
_REPORT_LINES = 8
# How long this task stays to be seen once it has seen everybody.
_LINGER_SECONDS = 0.5
# A peer that shows up has all others tried again, but not more often than this.
_NUDGE_SECONDS = 0.1


def wait_for_peers(
    config: ClusterConfig,
    *,
    timeout_seconds: float,
    log: Callable[[str], None] | None = None,
    report_every_seconds: float = 10.0,
    peers: Sequence[Task] | None = None,
) -> None:
    """Returns as soon as every peer has answered once; call it before TensorFlow opens this task's own port.

    Meanwhile it listens on this task's own port, so that the peers see this task. A peer has answered if it accepts
    a TCP connection: it waits in here as well, or its TensorFlow server runs already. Names that do not resolve yet
    are tried again. Having seen everybody, this task stays half a second longer to be seen. On return all sockets are
    closed and all threads have ended; only a name look-up that hangs in the system's resolver past the deadline
    outlives the call.

    Args:
        config: the cluster. A single process returns at once; an evaluator only makes sure of its own port.
        timeout_seconds: how long to wait for all peers together.
        log: takes a line for each peer that is still awaited; None is the tfdist logger.
        report_every_seconds: how often.
        peers: the tasks to wait for; None is config.peers().

    Raises:
        PortInUseError: at once, if another process listens on this task's own port.
        PeerTimeoutError: at the deadline; names every peer that has not answered, with the reason.
        ValueError: if a time is not positive and finite.

    Example:
        >>> wait_for_peers(ClusterConfig(), timeout_seconds=300.0)
    """
    _check_seconds("timeout_seconds", timeout_seconds)
    _check_seconds("report_every_seconds", report_every_seconds)
    awaited = tuple(dict.fromkeys(config.peers() if peers is None else peers))
    say = get_logger().info if log is None else log
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        server = None
        if config.address is not None:
            server = stack.enter_context(listen(config.address, task_name=config.task_name))
        seekers = stack.enter_context(Seekers(awaited, deadline=start + timeout_seconds))
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(seekers.wake, selectors.EVENT_READ)
        if server is not None:
            selector.register(server, selectors.EVENT_READ)
        next_report = report_every_seconds
        nudged = -math.inf
        while missing := seekers.missing():
            elapsed = time.monotonic() - start
            if elapsed >= timeout_seconds:
                raise PeerTimeoutError(_timeout_sentence(missing, len(awaited), timeout_seconds), missing)
            if elapsed >= next_report:
                for line in _report(missing, elapsed, timeout_seconds):
                    say(line)
                next_report = elapsed + report_every_seconds
            visited = _serve_once(selector, server, seekers.wake, min(timeout_seconds, next_report) - elapsed)
            if visited and elapsed - nudged >= _NUDGE_SECONDS:
                # Whoever comes here is up, and stays to be seen only for a moment if this task was its last peer.
                seekers.nudge()
                nudged = elapsed
        if server is not None and awaited:
            leave = min(time.monotonic() + _LINGER_SECONDS, start + timeout_seconds)
            while (remaining := leave - time.monotonic()) > 0:
                _serve_once(selector, server, seekers.wake, remaining)
        # A peer that still has not seen this task, because it cannot resolve its name yet for one, loses nothing: it
        # tries on until its own deadline, and TensorFlow's server opens the same port in a moment.


def probe_peers(config: ClusterConfig, *, timeout_seconds: float = 1.0) -> tuple[tuple[Task, str], ...]:
    """Asks every peer once and returns those that do not answer now, each with the reason.

    Args:
        config: the cluster.
        timeout_seconds: for all peers together, asked at the same time.

    Raises:
        ValueError: if the time is not positive and finite.

    Example:
        >>> probe_peers(ClusterConfig())
        ()
    """
    _check_seconds("timeout_seconds", timeout_seconds)
    deadline = time.monotonic() + timeout_seconds
    with Seekers(config.peers(), deadline=deadline, once=True) as seekers, selectors.DefaultSelector() as selector:
        selector.register(seekers.wake, selectors.EVENT_READ)
        while seekers.searching() and (remaining := deadline - time.monotonic()) > 0:
            # A thread wakes this one just before it ends, so that the last one may still be alive here.
            if selector.select(min(remaining, 0.05)):
                seekers.wake.recv(4096)
        return seekers.missing()


def _serve_once(
    selector: selectors.BaseSelector, server: socket.socket | None, wake: socket.socket, timeout_seconds: float
) -> bool:
    """Waits for news and returns whether a peer has come to this task's own port."""
    visited = False
    for key, _ in selector.select(timeout_seconds):
        # What was readable may be gone again: a peer that has given up, for one.
        with contextlib.suppress(OSError):
            if server is not None and key.fileobj is server:
                # Closed at once: whoever speaks gRPC to this port already takes it as not ready and tries again,
                # instead of waiting for a greeting that never comes.
                server.accept()[0].close()
                visited = True
            else:
                wake.recv(4096)
    return visited


def _report(missing: Sequence[tuple[Task, str]], elapsed: float, timeout_seconds: float) -> list[str]:
    spent = f"{elapsed:.0f} s of {timeout_seconds:g} s"
    lines = [f"waiting for {peer} ({spent}): {reason}" for peer, reason in missing[:_REPORT_LINES]]
    if len(missing) > _REPORT_LINES:
        lines.append(f"waiting for {len(missing) - _REPORT_LINES} more tasks ({spent})")
    return lines


def _timeout_sentence(missing: Sequence[tuple[Task, str]], count: int, timeout_seconds: float) -> str:
    advice = " and ".join(dict.fromkeys(_ADVICE.get(reason, "check its machine and network") for _, reason in missing))
    if len(missing) == 1:
        peer, reason = missing[0]
        return f"{peer} did not answer in {timeout_seconds:g} s ({reason}); {advice}."
    named = ", ".join(f"{peer} ({reason})" for peer, reason in missing)
    return f"{len(missing)} of {count} peers did not answer in {timeout_seconds:g} s: {named}; {advice}."


def _check_seconds(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"expected {name} to be a positive number of seconds, received {value!r}; choose one.")
