from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import threading

import pytest

# The seconds that a test may wait: far more than any test needs, so that only a hang reaches the limit.
DEADLINE = 20.0


@pytest.fixture
def held_ports():
    """Gives ports that stay free for the test: each is bound as a launcher binds it, and nothing listens on it."""
    with contextlib.ExitStack() as stack:

        def hold(count=1):
            ports = []
            for _ in range(count):
                holder = stack.enter_context(socket.socket())
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                holder.bind(("127.0.0.1", 0))
                ports.append(holder.getsockname()[1])
            return ports

        yield hold


# The first bytes of TensorFlow's server: an empty SETTINGS frame of HTTP/2 (RFC 9113 section 3.4).
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.fixture
def silent_server():
    """Opens servers that accept connections and send nothing, as the kernel does for a process that is stopped."""
    with contextlib.ExitStack() as stack:

        def serve(port=0):
            opened = stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return opened, opened.getsockname()[1]

        yield serve


@pytest.fixture
def server(silent_server):
    """Opens servers on a given port or on any free port. Like TensorFlow's server, they send the first bytes."""
    opened = []

    def reply(listening):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(SETTINGS)

    def serve(port=0):
        listening, port = silent_server(port)
        thread = threading.Thread(target=reply, args=(listening,))
        thread.start()
        opened.append((listening, thread))
        return listening, port

    yield serve
    for listening, thread in opened:
        close_listening(listening)
        thread.join(DEADLINE)


def close_listening(listening):
    """Closes a server; unlike close() alone, shutdown() also ends an accept() that waits in another thread."""
    with contextlib.suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)
    listening.close()


@pytest.fixture
def background():
    """Runs a function in a thread and returns its future."""
    with concurrent.futures.ThreadPoolExecutor(32, thread_name_prefix="background") as pool:
        yield pool.submit


@pytest.fixture(autouse=True)
def every_thread_has_ended():
    # Tests of other packages in this process may have left threads that handle signals as long as the process lives.
    before = threading.enumerate()
    yield
    started = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in started if thread.name.startswith("tfdist")] == []
