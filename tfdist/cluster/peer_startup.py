"""Waits until every peer is up, because TensorFlow's own start-up waits for them silently and without a time limit."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence

from tfdist._log import get_logger
from tfdist.cluster.address import split_address
from tfdist.cluster.background_probes import BackgroundProbes
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.errors import PeerTimeoutError, PortInUseError
from tfdist.cluster.greeting import Greeting, own_incarnation, send_greeting
from tfdist.cluster.incarnations import (
    OTHER_LAUNCH,
    foreign_reason,
    is_foreign,
    is_foreign_reason,
    replaced_sentence,
)
from tfdist.cluster.listener import PeerListener
from tfdist.cluster.probe import CLOSED, NO_REPLY, NO_ROUTE, REFUSED, SILENT, UNRESOLVED
from tfdist.cluster.sockets import listen_on_own_port
from tfdist.cluster.tasks import Task, same_task
from tfdist.cluster.wrong_indices import CHECK_INDICES, describe, explain, is_another_task

ADVICE = {
    REFUSED: "start it, or look in its output for why it ended",
    CLOSED: "look in its output for why it ended",
    UNRESOLVED: "check the host name and that this machine's DNS knows it",
    NO_REPLY: "check that its machine is up and that no firewall drops the port",
    NO_ROUTE: "check the address and the network between the two machines",
    SILENT: "the process there is stopped or stuck, or is another program",
}
_REPORT_LINES = 8
# How long this task goes on answering its peers once all of them have answered.
_LINGER_SECONDS = 0.5
# How long this task waits on once wrong task indices explain all of the missing peers.
_PATIENCE_SECONDS = 10.0
# How long the end of the wait may be delayed until the peers have been told about wrong indices.
_TELL_SECONDS = 2.0
# A connection from a peer makes this task probe all missing peers at once, but at most once in this time.
_RETRY_SECONDS = 0.1


def wait_for_peers(
    config: ClusterConfig,
    *,
    timeout_seconds: float,
    log: Callable[[str], None] | None = None,
    report_every_seconds: float = 10.0,
    peers: Sequence[Task] | None = None,
) -> None:
    """Returns as soon as every peer has answered once; call it before TensorFlow opens this task's own port.

    While this function waits, it listens on this task's own port, so that the peers get an answer from this task. A
    peer has answered if it sends its name, because it waits in wait_for_peers too, or if its TensorFlow server sends
    its first bytes. Names that do not resolve yet are tried again. When all peers have answered, this task goes on
    answering for half a second. On return all sockets are closed and all threads have ended, except a thread whose name
    look-up hangs in the system's resolver past the deadline.

    If two processes are started as the same task, another task is missing. On one machine, the second process cannot
    listen, says so to the first process, and raises PortInUseError; on two machines, each finds a task with its own
    name at the address of a peer. The first process passes this on to its peers. All of them wait for 10 s more and
    raise PeerTimeoutError if no more peers are missing than wrong processes were seen.

    Tasks of `tfdist launch` also send their incarnation. A task of another launch, or of another start of this launch,
    is not taken for the peer. If this task meets a later start of its own launch, it raises PeerTimeoutError at once.

    Args:
        config: the cluster. A single process returns at once; an evaluator only checks that its own port is free.
        timeout_seconds: how long to wait for all peers together.
        log: called with one line for each peer that has not answered yet; None writes the lines to the tfdist logger.
        report_every_seconds: the time between two such reports.
        peers: the tasks to wait for; None is config.peers().

    Raises:
        PortInUseError: at once, if another process listens on this task's own port.
        PeerTimeoutError: at the deadline, or soon after a second process was started as this task; names every peer
            that has not answered, with the reason.
        ValueError: if a time is not positive and finite.

    Example:
        >>> wait_for_peers(ClusterConfig(), timeout_seconds=300.0)
    """
    _check_seconds("timeout_seconds", timeout_seconds)
    _check_seconds("report_every_seconds", report_every_seconds)
    awaited = tuple(dict.fromkeys(config.peers() if peers is None else peers))
    write_line = get_logger().info if log is None else log
    incarnation = own_incarnation(config.source)
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        listener = None
        if config.address is not None:
            listener = stack.enter_context(_listen(config.address, config.task_name, selector, incarnation))
        probes = stack.enter_context(
            BackgroundProbes(awaited, deadline=start + timeout_seconds, incarnation=incarnation)
        )
        selector.register(probes.wake, selectors.EVENT_READ)
        next_report, give_up_at = report_every_seconds, timeout_seconds
        retried = -math.inf
        reported_rivals = 0
        while missing := probes.missing():
            elapsed = time.monotonic() - start
            rivals = listener.rivals if listener else []
            newer = probes.replaced_by or (listener.replaced_by if listener else None)
            if newer is not None:
                sentence = replaced_sentence(config.task_name, incarnation, newer.task_name, newer.incarnation)
                raise PeerTimeoutError(sentence, missing)
            if not explain(missing, rivals):
                give_up_at = timeout_seconds
            elif give_up_at == timeout_seconds:
                give_up_at = min(timeout_seconds, round(elapsed + _PATIENCE_SECONDS, 1))
            if elapsed >= give_up_at:
                sentence = _timeout_sentence(missing, len(awaited), rivals, f"{give_up_at:g}")
                raise PeerTimeoutError(sentence, missing)
            if len(rivals) > reported_rivals:
                own = [rival for rival in rivals[reported_rivals:] if same_task(rival.task_name, config.task_name)]
                reported_rivals = len(rivals)
                write_line(f"{describe(rivals)}; {CHECK_INDICES}")
                stack.callback(_tell_peers(awaited, own).join, _TELL_SECONDS)
            if elapsed >= next_report:
                for line in _report(missing, elapsed, timeout_seconds):
                    write_line(line)
                next_report = elapsed + report_every_seconds
            connected = _wait_for_event(selector, listener, probes, min(give_up_at, next_report) - elapsed)
            if connected and elapsed - retried >= _RETRY_SECONDS:
                # The peer that connected is up. If it waited only for this task, it answers for only a moment longer,
                # so that this task must try again soon.
                probes.retry_now()
                retried = elapsed
        if listener is not None and awaited:
            linger_until = min(time.monotonic() + _LINGER_SECONDS, start + timeout_seconds)
            while (remaining := linger_until - time.monotonic()) > 0:
                _wait_for_event(selector, listener, probes, remaining)
        # A peer may not have reached this task yet, for example because it cannot resolve this task's name. Closing the
        # port does not harm the peer: it tries again until its own deadline, and soon TensorFlow's server opens the
        # port.


def probe_peers(config: ClusterConfig, *, timeout_seconds: float = 1.0) -> tuple[tuple[Task, str], ...]:
    """Probes every peer once and returns those that do not answer, each with the reason.

    Args:
        config: the cluster.
        timeout_seconds: the time limit for all peers, which are probed at the same time.

    Raises:
        ValueError: if the time is not positive and finite.

    Example:
        >>> probe_peers(ClusterConfig())
        ()
    """
    _check_seconds("timeout_seconds", timeout_seconds)
    deadline = time.monotonic() + timeout_seconds
    with (
        BackgroundProbes(config.peers(), deadline=deadline, once=True) as probes,
        selectors.DefaultSelector() as selector,
    ):
        selector.register(probes.wake, selectors.EVENT_READ)
        while probes.running() and (remaining := deadline - time.monotonic()) > 0:
            # A thread writes to the wake socket just before it ends, so that it may still be alive after the write.
            if selector.select(min(remaining, 0.05)):
                probes.wake.recv(4096)
    # An attempt that the deadline cuts short has its reason once its thread has ended.
    return probes.missing()


def _listen(address: str, task_name: str, selector: selectors.BaseSelector, incarnation: str | None) -> PeerListener:
    try:
        server = listen_on_own_port(address, task_name=task_name)
        return PeerListener(server, task_name=task_name, selector=selector, incarnation=incarnation)
    except PortInUseError as error:
        _, port = split_address(address)
        # The other process is on this machine, whose own address may have no route from inside a container.
        own = Greeting(task_name, os.getpid(), incarnation)
        holder = send_greeting(own, hosts=("127.0.0.1", "::1"), port=port)
        if holder is None:
            raise
        if is_foreign(incarnation, holder.incarnation):
            reason = foreign_reason(incarnation, holder.incarnation, holder.task_name)
            raise PortInUseError(
                f"{task_name} expected port {port} to be free for its own address {address}, but {reason}; "
                f"{OTHER_LAUNCH}."
            ) from error
        raise PortInUseError(
            f"{task_name} expected port {port} to be free for its own address {address}, but another process that is "
            f"{holder.task_name} listens there; {CHECK_INDICES}."
        ) from error


def _tell_peers(peers: Sequence[Task], rivals: Sequence[Greeting]) -> threading.Thread:
    """Starts a thread that passes the rivals of this task on, so that the peers do not wait for the missing task."""

    def tell() -> None:
        for peer in peers:
            host, port = split_address(peer.address)
            for rival in rivals:
                send_greeting(rival, hosts=(host,), port=port)

    thread = threading.Thread(target=tell, daemon=True, name="tfdist tells peers")
    thread.start()
    return thread


def _wait_for_event(
    selector: selectors.BaseSelector, listener: PeerListener | None, probes: BackgroundProbes, timeout_seconds: float
) -> bool:
    """Waits until a peer connects or a probe ends, and returns whether a peer has connected."""
    connected = False
    for key, _ in selector.select(timeout_seconds):
        if key.fileobj is probes.wake:
            with contextlib.suppress(OSError):
                probes.wake.recv(4096)
        elif listener is not None:
            connected = listener.handle(key.fileobj) or connected
    return connected


def _report(missing: Sequence[tuple[Task, str]], elapsed: float, timeout_seconds: float) -> list[str]:
    spent = f"{elapsed:.0f} s of {timeout_seconds:g} s"
    lines = [f"waiting for {peer} ({spent}): {reason}" for peer, reason in missing[:_REPORT_LINES]]
    if len(missing) > _REPORT_LINES:
        lines.append(f"waiting for {len(missing) - _REPORT_LINES} more tasks ({spent})")
    return lines


def _timeout_sentence(missing: Sequence[tuple[Task, str]], count: int, rivals: Sequence[Greeting], seconds: str) -> str:
    if rivals or any(is_another_task(reason) for _, reason in missing):
        advice = CHECK_INDICES
    elif any(is_foreign_reason(reason) for _, reason in missing):
        advice = OTHER_LAUNCH
    else:
        advice = " and ".join(dict.fromkeys(ADVICE.get(why, "check its machine and network") for _, why in missing))
    others = f", and {describe(rivals)}" if rivals else ""
    if len(missing) == 1:
        peer, reason = missing[0]
        return f"{peer} did not answer in {seconds} s ({reason}){others}; {advice}."
    named = ", ".join(f"{peer} ({reason})" for peer, reason in missing)
    return f"{len(missing)} of {count} peers did not answer in {seconds} s: {named}{others}; {advice}."


def _check_seconds(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"expected {name} to be a positive, finite number of seconds, received {value!r}.")
