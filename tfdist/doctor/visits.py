"""Visits: connects to every other task, in threads, until each has answered or a deadline has passed."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterable

from tfdist.cluster.address import split_address
from tfdist.cluster.greeting import MAX_BYTES, Greeting
from tfdist.cluster.incarnations import foreign_reason, is_foreign
from tfdist.cluster.probe import CLOSED, NO_REPLY, SILENT, UNRESOLVED, probe
from tfdist.cluster.tasks import Task, same_task
from tfdist.cluster.wrong_indices import another_task, is_another_task
from tfdist.doctor import wire
from tfdist.doctor.checks.clock import offset
from tfdist.doctor.exchange import Exchange
from tfdist.doctor.facts import Facts
from tfdist.doctor.link import NO_LOOK_UP, NOT_DOCTOR, TENSORFLOW, TRAINING, Link

_ATTEMPT_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5
_PINGS = 8


class Visits:
    """Talks to every task once.

    Args:
        tasks: the tasks to connect to, which may include this task.
        exchange: where the facts of the others go.
        clock: seconds since 1970.
        deadline: when to give up, in seconds of time.monotonic().
        once: whether each task gets a single attempt.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        exchange: Exchange,
        *,
        clock: Callable[[], float],
        deadline: float,
        once: bool = False,
    ) -> None:
        self._exchange = exchange
        self._clock = clock
        self._deadline = deadline
        self._once = once
        self._stopped = threading.Event()
        self._links = {
            task: Link(target=task.name, address=task.address, reason=NO_LOOK_UP) for task in tasks if task.address
        }
        # Daemon threads, because nothing ends a name look-up that hangs in the resolver.
        self._threads = [
            threading.Thread(target=self._visit, args=(task,), name=f"tfdist visits {task.name}", daemon=True)
            for task in self._links
        ]
        for thread in self._threads:
            thread.start()

    def links(self) -> tuple[Link, ...]:
        """Returns the result of the last attempt for each task."""
        return tuple(self._links.values())

    def are_over(self) -> bool:
        """Returns whether every task has answered, or has had its single attempt."""
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Ends the attempts."""
        self._stopped.set()

    def _visit(self, task: Task) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while (remaining := self._deadline - time.monotonic()) > 0:
            allowed = min(_ATTEMPT_SECONDS, remaining)
            before = self._links[task]
            try:
                now = self._attempt(task, allowed)
            except Exception as error:
                # Whatever goes wrong here is a finding about this task, and not the end of the other checks.
                now = dataclasses.replace(before, reason=f"{type(error).__name__}: {error}")
            # If the deadline cut the attempt short, "no reply" says less than the reason of the attempt before. A task
            # that has ended since says less than its wrong index.
            cut_short = now.reason in (NO_REPLY, SILENT) and allowed < _ATTEMPT_SECONDS
            if before.reason == NO_LOOK_UP or not (cut_short or (now.reason and is_another_task(before.reason))):
                self._links[task] = now
            self._exchange.touch()
            if not now.reason or self._once or self._stopped.wait(pause):
                break
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _attempt(self, task: Task, allowed: float) -> Link:
        link = Link(target=task.name, address=task.address)
        host, port = split_address(task.address)
        start = time.monotonic()
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError):
            return dataclasses.replace(link, reason=UNRESOLVED, name_seconds=time.monotonic() - start)
        link = dataclasses.replace(
            link,
            resolved=tuple(dict.fromkeys(str(one[4][0]) for one in found)),
            name_seconds=time.monotonic() - start,
        )
        answer = probe(task.address, timeout_seconds=allowed)
        if answer.reason is not None:
            return dataclasses.replace(link, reason=answer.reason)
        if answer.task_name is None:
            return dataclasses.replace(link, reason=TENSORFLOW)
        incarnation = self._exchange.own.identity.incarnation
        if is_foreign(incarnation, answer.incarnation):
            reason = foreign_reason(incarnation, answer.incarnation, answer.task_name)
            return dataclasses.replace(link, reason=reason)
        if not same_task(answer.task_name, task.name):
            return dataclasses.replace(link, reason=another_task(answer.task_name))
        return self._talk(task, link, allowed)

    def _talk(self, task: Task, link: Link, allowed: float) -> Link:
        try:
            with connect(task, timeout_seconds=allowed) as connection, connection.makefile("rb") as file:
                if Greeting.from_bytes(file.readline(MAX_BYTES)) is None:
                    return dataclasses.replace(link, reason=CLOSED)
                wire.send(connection, "hello", facts=self._exchange.own)
                facts = wire.decode(Facts, wire.receive(file, "hello").get("facts"))
                times = []
                for _ in range(_PINGS):
                    sent = self._clock()
                    wire.send(connection, "ping")
                    reply = wire.receive(file, "pong")
                    back = self._clock()
                    times.append(
                        (sent, *(wire.decode(float, reply.get(name)) for name in ("received", "replied")), back)
                    )
        except TimeoutError:
            return dataclasses.replace(link, reason=SILENT)
        except EOFError:
            # Its greeting came, and nothing else.
            return dataclasses.replace(link, reason=TRAINING)
        except (OSError, ValueError) as error:
            reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else NOT_DOCTOR
            return dataclasses.replace(link, reason=reason)
        own = self._exchange.own.identity
        if task.name == own.task and facts.identity.unique != own.unique:
            return dataclasses.replace(link, reason=another_task(f"{task.name}, {facts.identity.place}"))
        self._exchange.note_reached(facts)
        return dataclasses.replace(link, clock=offset(times))


def connect(task: Task, *, timeout_seconds: float) -> socket.socket:
    """Returns a connection to a task.

    Args:
        task: the task.
        timeout_seconds: the time limit of each operation.

    Raises:
        OSError: if there is no connection.
    """
    return socket.create_connection(split_address(task.address), timeout=timeout_seconds)
