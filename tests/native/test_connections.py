"""Who may connect, which ports are freed, and when the engine gives up, without TensorFlow's operations."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from tests.native.ranks import (
    DEADLINE_EXCEEDED,
    GREETING,
    LIFELINE,
    RECEIVE,
    SECONDS,
    STREAM,
    addresses_of,
    all_reduce,
    connected,
    greeted,
    native_library,
    start,
    wait,
)
from tfdist.allreduce.native import install as install_module
from tfdist.allreduce.native.communicator import Listener
from tfdist.allreduce.native.install import _connect


@pytest.fixture(autouse=True, scope="module")
def _library() -> Iterator[None]:
    with native_library():
        yield


def listening(run_id: str = "run") -> Listener:
    return Listener("127.0.0.1", shares_memory=True, run_id=run_id)


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_process_with_another_run_id_is_refused_and_the_real_ranks_start(hosts: int) -> None:
    listeners, stranger = [listening(), listening()], listening("another run")
    with ThreadPoolExecutor(1) as thread:
        addresses = addresses_of(listeners, hosts=hosts)
        first = thread.submit(listeners[0].connect, 0, addresses, timeout_seconds=SECONDS)
        with pytest.raises(TimeoutError, match=r"expected rank 0 \(127.0.0.1:\d+\) to answer within 1 s"):
            stranger.connect(1, addresses_of([listeners[0], stranger], hosts=hosts), timeout_seconds=1.0)
        second = listeners[1].connect(1, addresses, timeout_seconds=SECONDS)
        communicators = [first.result(), second]
    one, two = np.arange(9, dtype=np.float32), np.ones(9, np.float32)
    for total in all_reduce(communicators, [one, two]):
        np.testing.assert_array_equal(total, one + two)
    for communicator in communicators:
        communicator.close()


def test_each_rank_has_a_lifeline_and_a_stream_and_no_other_connection() -> None:
    listener = listening()
    addresses = [f"rank_0 127.0.0.1 {listener.port} - -", "rank_1 127.0.0.1 1 - -"]
    with contextlib.ExitStack() as stack:
        connecting = stack.enter_context(ThreadPoolExecutor(1)).submit(
            listener.connect, 0, addresses, timeout_seconds=SECONDS
        )
        # The greeting is answered, or the connection is closed.
        for use, answered in ((3, 0), (LIFELINE, GREETING), (LIFELINE, 0), (0, 0), (STREAM, GREETING)):
            peer = stack.enter_context(greeted(listener.port, use, run_id="run"))
            assert len(peer.recv(GREETING, socket.MSG_WAITALL)) == answered, use
        connecting.result().close()


def test_a_rank_that_makes_one_of_its_two_connections_is_missing() -> None:
    listener = listening()
    addresses = [f"rank_0 127.0.0.1 {listener.port} - -", "rank_1 127.0.0.1 1 - -"]
    with (
        greeted(listener.port, LIFELINE, run_id="run"),
        pytest.raises(TimeoutError, match=r"expected rank 1 \(127.0.0.1:1\) to connect within 1 s"),
    ):
        listener.connect(0, addresses, timeout_seconds=1.0)


def test_a_listener_that_never_connects_frees_its_port() -> None:
    closed, forgotten = listening(), listening()
    ports = [closed.port, forgotten.port]
    assert all(is_open(port) for port in ports)
    closed.close()
    closed.close()
    del forgotten
    gc.collect()
    assert not any(is_open(port) for port in ports)
    with pytest.raises(OSError, match="neither connected nor been closed"):
        closed.connect(0, ["rank_0 127.0.0.1 1 - -"], timeout_seconds=1.0)


def test_if_one_replica_of_a_process_cannot_connect_the_connections_of_the_others_end() -> None:
    # Ranks 0 and 1 are replicas of this process; rank 2 connects with rank 0 only, and learns that rank 0 has gone.
    listeners = [listening(), listening()]
    other = listening()
    real = addresses_of([*listeners, other])
    lonely = listening("another run")
    seen = []

    class Watched:
        def __init__(self, listener: Listener, addresses: list[str]) -> None:
            self.listener, self.addresses = listener, addresses

        def connect(self, rank: int, addresses: list[str], *, timeout_seconds: float):
            seen.append(self.listener.connect(rank, self.addresses, timeout_seconds=timeout_seconds))
            return seen[-1]

    with ThreadPoolExecutor(1) as thread:
        pair = addresses_of([listeners[0], other])
        peer = thread.submit(other.connect, 1, pair, timeout_seconds=SECONDS)
        with pytest.raises(TimeoutError):
            _connect([Watched(listeners[0], pair), Watched(lonely, real)], real, first=0, timeout_seconds=2.0)
        values, out = np.ones(3, np.float32), np.empty(3, np.float32)
        code, message = wait(start(peer.result(), values, out))
    assert code and "rank 0" in message
    assert len(seen) == 1


def test_a_process_without_free_files_says_so_and_does_not_wait_for_the_deadline() -> None:
    listener, other = listening(), listening()
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    addresses = addresses_of([listener, other], hosts=2)
    with socket.create_connection(("127.0.0.1", listener.port)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 500), limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            # Rank 0 has one for itself, and none for the connection of rank 1.
            os.close(held.pop())
            began = time.process_time()
            with pytest.raises(OSError, match="accepting the connection of another rank: Too many open files"):
                listener.connect(0, addresses, timeout_seconds=5.0)
            assert time.process_time() - began < 2
        finally:
            for file in held:
                os.close(file)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    other.close()


def test_connections_end_if_the_other_workers_do_not_say_whether_they_have_connected(monkeypatch) -> None:
    closed = []

    class Meeting:
        def __init__(self, **_: object) -> None: ...

        def run_id(self, **_: object) -> str:
            return "run"

        def exchange(self, what: str, values: dict, **_: object) -> list[dict]:
            if what == "connected":
                raise TimeoutError("worker 1 does not answer")
            return [values]

    class Connected:
        def close(self) -> None:
            closed.append(self)

    for name, value in {
        "Rendezvous": Meeting,
        "_why_not": lambda _: "",
        "_task_names": lambda _: ["worker 0"],
        "_hosts": lambda _: ["127.0.0.1"],
        "_listen_on": lambda *_: "127.0.0.1",
        "_connect": lambda *_, **__: [Connected()],
    }.items():
        monkeypatch.setattr(install_module, name, value)
    extended = SimpleNamespace(_id_in_cluster=0, worker_devices=["CPU:0"], _num_workers=2)
    with pytest.raises(TimeoutError, match="worker 1 does not answer"):
        install_module.install(SimpleNamespace(extended=extended), asked="native", timeout_seconds=10.0)
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("hosts", "worker", "address"),
    [
        (["127.0.0.1", "127.0.1.1"], 1, "127.0.1.1"),
        (["::1", "127.0.0.1"], 1, "127.0.0.1"),
        (["127.0.0.1", "10.0.0.2"], 0, "0.0.0.0"),
        (["127.0.0.1", "fd00::2"], 0, "::"),
    ],
)
def test_a_worker_listens_where_the_others_look_for_it(hosts: list[str], worker: int, address: str) -> None:
    assert install_module._listen_on(hosts, worker) == address


def test_a_deadline_passes_while_other_operations_move_bytes_all_the_time() -> None:
    with connected(2) as communicators, ThreadPoolExecutor(2) as threads:
        values, out = np.ones(4, np.float32), np.empty(4, np.float32)
        began = time.monotonic()
        awaited = start(communicators[0], values, out, kind=RECEIVE, tag=7, peer=1, seconds=1.0)

        def sum_on(rank: int) -> str:
            own, total = np.ones([2, 1 << 20], np.float32), np.empty([2, 1 << 20], np.float32)
            running: list[int] = []
            for turn in range(10_000):
                number = start(communicators[rank], own[turn % 2], total[turn % 2], tag=2 + turn % 2)
                running.append(number)
                if len(running) == 2:
                    code, message = wait(running.pop(0))
                    if code:
                        for one in running:
                            wait(one)
                        return message
            return ""

        messages = list(threads.map(sum_on, range(2)))
        code, message = wait(awaited)
        seconds = time.monotonic() - began
    assert code == DEADLINE_EXCEEDED
    assert "take part in receive within 1 s, waited for rank 1" in message
    assert all("within 1 s, waited for rank 1" in one for one in messages)
    assert seconds < 5
