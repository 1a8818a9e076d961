"""PeerListener: answers the peers of a task at its own port for as long as the task waits for them."""

from __future__ import annotations

import contextlib
import selectors
import socket

from tfdist.cluster.greeting import MAX_BYTES, Greeting
from tfdist.cluster.incarnations import is_foreign, is_replaced

# A connection stays open until the other side closes it. This limit bounds the connections of clients that never do.
_MOST_CONNECTIONS = 64


class PeerListener:
    """Tells everyone who connects the name of this task, and collects the greetings of processes with the same port.

    Args:
        server: a non-blocking socket that listens on the port of this task; the listener closes it.
        task_name: the name of this task.
        selector: the selector that the caller waits with; the listener adds its sockets to it.
        incarnation: the incarnation of this task; None if it has none.

    Attributes:
        rivals: the greetings of the processes that could not listen because this task, or a peer, has their port.
        replaced_by: the greeting of such a process of a later start of the same launch; None if there was none.

    Example:
        >>> import selectors, socket
        >>> with selectors.DefaultSelector() as selector:
        ...     with PeerListener(socket.create_server(("", 0)), task_name="worker 0", selector=selector) as listener:
        ...         listener.rivals
        []
    """

    def __init__(
        self,
        server: socket.socket,
        *,
        task_name: str,
        selector: selectors.BaseSelector,
        incarnation: str | None = None,
    ) -> None:
        self.rivals: list[Greeting] = []
        self.replaced_by: Greeting | None = None
        self._server = server
        self._incarnation = incarnation
        self._greeting = Greeting(task_name, incarnation=incarnation).to_bytes()
        self._selector = selector
        # In the order in which they were accepted.
        self._connections: list[socket.socket] = []
        selector.register(server, selectors.EVENT_READ)

    def __enter__(self) -> PeerListener:
        return self

    def __exit__(self, *exc: object) -> None:
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.unregister(self._server)
        self._server.close()

    def handle(self, ready: object) -> bool:
        """Accepts or reads from a socket that the selector has found readable, and returns whether a peer connected.

        Args:
            ready: the socket.
        """
        if ready is self._server:
            return self._accept()
        for connection in self._connections:
            if connection is ready:
                # A client that has closed its end may reset the connection.
                with contextlib.suppress(OSError):
                    self._note(Greeting.from_bytes(connection.recv(MAX_BYTES)))
                self._drop(connection)
                break
        return False

    def _accept(self) -> bool:
        try:
            connection = self._server.accept()[0]
        except OSError:
            # The client gave up after select() had returned.
            return False
        try:
            connection.setblocking(False)
            connection.sendall(self._greeting)
            # A gRPC client notices from the end of the stream that TensorFlow's server is not ready, and tries again.
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            # The client has gone, but it was there, so that its task is up.
            connection.close()
            return True
        self._connections.append(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        if len(self._connections) > _MOST_CONNECTIONS:
            self._drop(self._connections[0])
        return True

    def _note(self, greeting: Greeting | None) -> None:
        if greeting is None or greeting.process is None:
            return
        if is_replaced(self._incarnation, greeting.incarnation):
            self.replaced_by = greeting
        # A process of another incarnation says nothing about wrong indices in this one.
        elif not is_foreign(self._incarnation, greeting.incarnation) and greeting not in self.rivals:
            self.rivals.append(greeting)

    def _drop(self, connection: socket.socket) -> None:
        self._connections.remove(connection)
        self._selector.unregister(connection)
        connection.close()
