"""Server: answers the other tasks at the port of this task."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from tfdist.cluster.greeting import Greeting
from tfdist.cluster.incarnations import is_foreign
from tfdist.doctor import wire
from tfdist.doctor.exchange import Exchange
from tfdist.doctor.facts import Facts
from tfdist.doctor.identity import Rival

_ACCEPT_SECONDS = 0.2
# How long a client may be silent between two messages.
_IDLE_SECONDS = 10.0


class Server:
    """Answers in threads until `close`.

    The first line of each connection is the greeting with which a task that waits for its peers answers, so that a
    training that starts finds this task, too.

    Args:
        listening: a socket that listens on the port of this task; `close` closes it.
        exchange: what this task knows of the others.
        clock: seconds since 1970.
        deadline: when all waiting ends, in seconds of time.monotonic().
    """

    def __init__(
        self, listening: socket.socket, exchange: Exchange, *, clock: Callable[[], float], deadline: float
    ) -> None:
        self._listening = listening
        self._exchange = exchange
        self._clock = clock
        self._deadline = deadline
        self._closed = False
        listening.settimeout(_ACCEPT_SECONDS)
        self._thread = threading.Thread(target=self._accept, name="tfdist doctor accepts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._closed = True
        self._thread.join(5 * _ACCEPT_SECONDS)
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:
                # The client gave up, or there are too many open files; the pause keeps this thread from spinning.
                time.sleep(0.01)
                continue
            threading.Thread(target=self._serve, args=(connection,), name="tfdist doctor answers", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # What comes from the network need not be tfdist doctor: a client that says anything else is dropped.
        with connection, contextlib.suppress(OSError, EOFError, ValueError):
            connection.settimeout(_IDLE_SECONDS)
            own = self._exchange.own.identity
            connection.sendall(Greeting(own.task, incarnation=own.incarnation).to_bytes())
            with connection.makefile("rb") as file:
                while line := file.readline(wire.MOST_BYTES):
                    received = self._clock()
                    greeting = Greeting.from_bytes(line)
                    if greeting is not None:
                        # A process of another launch says nothing about wrong indices in this one.
                        if greeting.process is not None and not is_foreign(own.incarnation, greeting.incarnation):
                            self._exchange.note_rival(Rival(task=greeting.task_name, process=greeting.process))
                        return
                    self._answer(connection, wire.message_in(line), received)

    def _answer(self, connection: socket.socket, message: dict[str, object], received: float) -> None:
        kind = message["kind"]
        if kind == "ping":
            wire.send(connection, "pong", received=received, replied=self._clock())
        elif kind == "hello":
            self._exchange.note_hello(wire.decode(Facts, message.get("facts")))
            wire.send(connection, "hello", facts=self._exchange.own)
        elif kind == "report":
            with self._exchange.delivering():
                self._exchange.note_report(wire.decode(Facts, message.get("facts")))
                if self._exchange.has_reported.wait(max(0.0, self._deadline - time.monotonic())):
                    wire.send(connection, "done")
        elif kind == "fetch":
            # The chief reaches this task, but this task may not reach the chief.
            if self._exchange.has_report.wait(max(0.0, self._deadline - time.monotonic())):
                wire.send(connection, "report", facts=self._exchange.own)
        elif kind == "done":
            self._exchange.is_released.set()
            wire.send(connection, "done")
