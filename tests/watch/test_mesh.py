"""Mesh: records of workers reach all other workers by UDP, in threads of one process and in separate processes."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tfdist.watch.datagram import Datagram
from tfdist.watch.mesh import Mesh, WorkerState
from tfdist.watch.udp import open_socket, resolve

# Far more time than anything here needs, so that only a hang fails.
DEADLINE_SECONDS = 60.0
# The header of a datagram of worker 1 that anyone can make who does not know the token.
NOISE = Datagram(token=0, worker=1, number=1, fields={}).to_bytes().removesuffix(b"{}")


@contextlib.contextmanager
def meshes(count: int, *, heartbeat_seconds: float = 0.05, host: str = "localhost") -> Iterator[list[Mesh]]:
    sockets = [open_socket() for _ in range(count)]
    addresses = [(host, one.getsockname()[1]) for one in sockets]
    found = [
        Mesh(worker, addresses, token=5, udp=one, heartbeat_seconds=heartbeat_seconds)
        for worker, one in enumerate(sockets)
    ]
    try:
        yield found
    finally:
        for mesh in found:
            mesh.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fields(state: WorkerState | None) -> dict:
    return {} if state is None else dict(state.fields)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_record_reaches_every_other_worker(host):
    with meshes(3, host=host) as workers:
        workers[1].publish(step=4, phase="saving")
        for mesh in workers:
            wait_for(lambda mesh=mesh: fields(mesh.states()[1]) == {"step": 4, "phase": "saving"})


def test_workers_with_only_ipv4_and_with_both_reach_each_other():
    four = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    four.setblocking(False)
    four.bind(("0.0.0.0", 0))
    sockets = [four, open_socket()]
    addresses = [("127.0.0.1", one.getsockname()[1]) for one in sockets]
    workers = [Mesh(i, addresses, token=5, udp=one, heartbeat_seconds=0.05) for i, one in enumerate(sockets)]
    for i, mesh in enumerate(workers):
        mesh.publish(me=i)
    for i, mesh in enumerate(workers):
        wait_for(lambda i=i, mesh=mesh: fields(mesh.states()[1 - i]) == {"me": 1 - i})
        mesh.close()


def test_fields_that_are_not_published_again_keep_their_values():
    with meshes(2) as (first, second):
        first.publish(step=1, phase="training")
        first.publish(step=2)
        wait_for(lambda: fields(second.states()[0]) == {"step": 2, "phase": "training"})


def test_an_urgent_change_does_not_wait_for_the_heartbeat():
    with meshes(2, heartbeat_seconds=10 * DEADLINE_SECONDS) as (first, second):
        changes: queue.Queue[WorkerState] = queue.Queue()
        second.on_change(changes.put)
        # The datagram may be sent before the callback is there, so that it is sent until it comes.
        deadline = time.monotonic() + DEADLINE_SECONDS
        for number in range(10_000):
            assert time.monotonic() < deadline
            first.publish(urgent=True, number=number)
            with contextlib.suppress(queue.Empty):
                assert changes.get(timeout=0.05).worker == 0
                return


def test_a_change_is_told_once_and_an_equal_record_not_at_all():
    with meshes(2, heartbeat_seconds=0.01) as (first, second):
        seen: list[object] = []
        second.on_change(lambda state: seen.append(state.fields.get("step")))
        for step in range(3):
            first.publish(urgent=True, step=step)
            wait_for(lambda step=step: fields(second.states()[0]).get("step") == step)
        first.publish(done=True)
        wait_for(lambda: "done" in fields(second.states()[0]))
    assert [step for step in seen if step is not None] == [0, 1, 2, 2]


def test_a_callback_that_fails_does_not_end_the_mesh():
    with meshes(2) as (first, second):
        second.on_change(lambda state: 1 / 0)
        for step in range(3):
            first.publish(urgent=True, step=step)
            wait_for(lambda step=step: fields(second.states()[0]).get("step") == step)


def test_publish_may_be_called_from_a_signal_handler_in_the_midst_of_publish():
    with meshes(2) as (first, second):
        ended = threading.Event()
        stock = signal.signal(signal.SIGALRM, lambda *_: first.publish(urgent=True, signalled=True))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            for step in range(20_000):
                first.publish(urgent=step % 50 == 0, step=step)
            ended.set()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, stock)
        assert ended.is_set()
        wait_for(lambda: fields(second.states()[0]) == {"step": 19_999, "signalled": True})


def test_datagrams_of_others_and_old_ones_are_ignored():
    with meshes(2, heartbeat_seconds=10 * DEADLINE_SECONDS) as (_, second), open_socket() as stranger:
        port = second._udp.getsockname()[1]
        (target,) = resolve(stranger, "127.0.0.1", port)

        def send(**changes: object) -> None:
            given = {"token": 5, "worker": 0, "number": 1000, "fields": {"step": 1}, **changes}
            stranger.sendto(Datagram(**given).to_bytes(), target)

        send(token=6, number=9999, fields={"bad": "token"})
        send(worker=7, number=9999)
        send(worker=1, number=9999, fields={"bad": "own number"})
        stranger.sendto(b"", target)
        stranger.sendto(b"tfd1 noise", target)
        stranger.sendto(Datagram(token=5, worker=0, number=9999, fields={}).to_bytes()[:-1], target)
        send(number=1000, fields={"step": 2})
        send(number=999, fields={"step": 1})
        send(number=1001, fields={"step": 3})
        wait_for(lambda: fields(second.states()[0]).get("step") == 3)
        assert fields(second.states()[1]) == {}
        assert len(second.states()) == 2


def test_the_age_of_a_worker_grows_when_it_is_stopped_and_not_when_it_is_quiet():
    program = """
        import sys, time
        from tfdist.watch.mesh import Mesh
        ports = [int(one) for one in sys.argv[1:]]
        mesh = Mesh(1, [("localhost", port) for port in ports], token=5, heartbeat_seconds=0.05)
        mesh.publish(step=9)
        time.sleep(600)
    """
    sockets = [open_socket(), open_socket()]
    ports = [one.getsockname()[1] for one in sockets]
    sockets[1].close()
    import textwrap

    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), *map(str, ports)])
    mesh = Mesh(0, [("localhost", port) for port in ports], token=5, udp=sockets[0])
    try:
        wait_for(lambda: fields(mesh.states()[1]) == {"step": 9})
        time.sleep(0.3)
        wait_for(lambda: mesh.states()[1].age_seconds < 0.1)
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: mesh.states()[1].age_seconds > 1.0)
        assert fields(mesh.states()[1]) == {"step": 9}
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: mesh.states()[1].age_seconds < 0.2)
    finally:
        process.kill()
        process.wait()
        mesh.close()


def test_one_worker_needs_no_socket_and_no_thread():
    threads = threading.active_count()
    mesh = Mesh(0, [("no-such-host.invalid", 1)], token=5)
    assert threading.active_count() == threads
    mesh.publish(urgent=True, step=1)
    assert [fields(state) for state in mesh.states()] == [{"step": 1}]
    mesh.close()


def test_close_ends_the_thread_and_sends_the_last_record():
    with meshes(2, heartbeat_seconds=0.2) as (first, second):
        wait_for(lambda: first.states()[1] is not None and second.states()[0] is not None)
        first.publish(done=True)
        first.close()
        wait_for(lambda: fields(second.states()[0]) == {"done": True})
        first.close()
        first.publish(urgent=True, step=2)
    assert not any(thread.name == "tfdist-mesh" for thread in threading.enumerate())


def test_a_record_that_is_too_large_is_refused_and_changes_nothing():
    with meshes(2) as (first, _):
        first.publish(step=1)
        with pytest.raises(ValueError, match=r"expected a record of at most 1000 bytes, received \d+ with \['text'\]"):
            first.publish(text="x" * 2000)
        assert fields(first.states()[0]) == {"step": 1}


@pytest.mark.parametrize(
    "data",
    [b"", b"tfd1", b"\xff" * 2000, NOISE + b"[" * 1900, NOISE + b'{"a":' * 380, NOISE + b"1" * 1900, NOISE + b"\xff"],
    ids=range(7),
)
def test_bytes_of_a_stranger_change_nothing(data):
    with meshes(2) as (first, second), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(data, ("127.0.0.1", first._udp.getsockname()[1]))
        # The datagrams are received in this order.
        time.sleep(0.05)
        second.publish(urgent=True, step=3)
        wait_for(lambda: fields(first.states()[1]) == {"step": 3})


def test_a_host_without_address_is_named():
    with pytest.raises(OSError, match=r"expected the host 'no-such-host\.invalid' to have an address"):
        Mesh(0, [("localhost", 0), ("no-such-host.invalid", 1)], token=5)


def test_a_port_in_use_is_refused():
    with open_socket() as holder, pytest.raises(OSError, match="in use"):
        open_socket(port=holder.getsockname()[1])


def test_sixty_four_workers_hear_of_each_other():
    with meshes(64, heartbeat_seconds=1.0) as workers:
        for worker, mesh in enumerate(workers):
            mesh.publish(urgent=True, me=worker)
        for mesh in workers:
            wait_for(lambda mesh=mesh: [fields(state).get("me") for state in mesh.states()] == list(range(64)))
