"""Tasks of different launches, or of different starts of one launch, that meet at a port."""

from __future__ import annotations

import threading
import time

import pytest

from tfdist.cluster import ClusterConfig, PeerTimeoutError, PortInUseError, peer_startup
from tfdist.cluster.greeting import Greeting, own_incarnation
from tfdist.cluster.peer_startup import wait_for_peers
from tfdist.cluster.probe import REFUSED

from .conftest import DEADLINE


def config(ports, index):
    return ClusterConfig(jobs={"worker": [f"localhost:{port}" for port in ports]}, task_type="worker", task_index=index)


@pytest.fixture(autouse=True)
def no_launch(monkeypatch):
    monkeypatch.delenv("TFDIST_LAUNCH_ID", raising=False)
    monkeypatch.delenv("TFDIST_ATTEMPT", raising=False)


@pytest.fixture
def wait_as(monkeypatch, background):
    """Starts wait_for_peers in a thread, as a task of the given incarnation; None is a task without a launcher."""
    incarnation = threading.local()
    monkeypatch.setattr(peer_startup, "own_incarnation", lambda source: incarnation.value)

    def start(ports, index, own, *, timeout_seconds=DEADLINE):
        lines = []

        def wait():
            incarnation.value = own
            wait_for_peers(
                config(ports, index), timeout_seconds=timeout_seconds, log=lines.append, report_every_seconds=0.05
            )

        future = background(wait)
        future.lines = lines
        return future

    return start


def until(condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(("one", "other"), [("a.1", "a.1"), (None, None), ("a.1", None)])
def test_tasks_of_one_incarnation_and_tasks_without_any_find_each_other(held_ports, wait_as, one, other):
    ports = held_ports(2)
    waits = [wait_as(ports, 0, one), wait_as(ports, 1, other)]
    for wait in waits:
        assert wait.result(DEADLINE) is None


def test_a_task_that_a_later_start_has_replaced_ends_at_once_and_the_later_one_waits_for_its_peer(held_ports, wait_as):
    ports = held_ports(2)
    new = wait_as(ports, 0, "a.2")
    old = wait_as(ports, 1, "a.1")
    with pytest.raises(PeerTimeoutError) as raised:
        old.result(DEADLINE)
    assert str(raised.value) == (
        "worker 1 expected peers of start 1 of its launch, received an answer of worker 0 of start 2, which has "
        "replaced this process."
    )
    assert not new.done()
    assert wait_as(ports, 1, "a.2").result(DEADLINE) is None
    assert new.result(DEADLINE) is None


def test_a_task_of_another_launch_is_not_the_peer_and_is_named_in_the_reports_and_at_the_deadline(held_ports, wait_as):
    ports = held_ports(2)
    wait_as(ports, 1, "b.0", timeout_seconds=3.0)
    mine = wait_as(ports, 0, "a.0", timeout_seconds=1.0)
    with pytest.raises(PeerTimeoutError) as raised:
        mine.result(DEADLINE)
    assert str(raised.value) == (
        f"worker 1 at localhost:{ports[1]} did not answer in 1 s (a task of another launch answers there: worker 1); "
        "end that task, or give each launch its own ports."
    )
    assert any("a task of another launch answers there: worker 1" in line for line in mine.lines)


def test_the_server_of_a_task_of_another_launch_is_not_the_peer(held_ports, wait_as, server, monkeypatch):
    ports = held_ports(2)
    other = wait_as(ports, 1, "b.0", timeout_seconds=1.5)
    mine = wait_as(ports, 0, "a.0", timeout_seconds=6.0)
    with pytest.raises(PeerTimeoutError):
        other.result(DEADLINE)
    assert any("another launch" in line for line in mine.lines)
    # For a moment nobody listens there, as between a task's own listener and its server.
    until(lambda: REFUSED in mine.lines[-1])
    server(ports[1])
    with pytest.raises(PeerTimeoutError, match=r"did not answer in 6 s \(a task of another launch answers there"):
        mine.result(DEADLINE)


def test_a_second_process_of_another_start_says_so_and_is_no_sign_of_wrong_indices(held_ports, wait_as):
    ports = held_ports(2)
    current = wait_as(ports, 1, "a.2")
    until(lambda: current.lines)
    with pytest.raises(PortInUseError) as raised:
        wait_as(ports, 1, "a.1").result(DEADLINE)
    assert str(raised.value) == (
        f"worker 1 expected port {ports[1]} to be free for its own address localhost:{ports[1]}, but a task of an "
        "earlier start answers there: worker 1; end that task, or give each launch its own ports."
    )
    assert wait_as(ports, 0, "a.2").result(DEADLINE) is None
    assert current.result(DEADLINE) is None
    assert not any("index" in line for line in current.lines)


def test_a_replaced_task_whose_port_the_later_start_needs_ends_at_once(held_ports, wait_as):
    ports = held_ports(2)
    old = wait_as(ports, 1, "a.1")
    until(lambda: old.lines)
    with pytest.raises(PortInUseError):
        wait_as(ports, 1, "a.2").result(DEADLINE)
    with pytest.raises(PeerTimeoutError, match="which has replaced this process"):
        old.result(DEADLINE)


@pytest.mark.parametrize(
    ("launch_id", "attempt", "word"),
    [("4f1c", "3", "4f1c.3"), ("4f1c", None, "4f1c.0"), (None, "3", None)],
)
def test_the_incarnation_comes_from_the_environment(monkeypatch, launch_id, attempt, word):
    for name, value in (("TFDIST_LAUNCH_ID", launch_id), ("TFDIST_ATTEMPT", attempt)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert own_incarnation() == word


@pytest.mark.parametrize("launch_id", ["two words\n", "é", "x" * 500, "job-7.step_2"])
def test_any_launch_id_fits_into_a_greeting(monkeypatch, launch_id):
    monkeypatch.setenv("TFDIST_LAUNCH_ID", launch_id)
    greeting = Greeting("worker 12", 4711, own_incarnation())
    assert Greeting.from_bytes(greeting.to_bytes()) == greeting
    monkeypatch.setenv("TFDIST_LAUNCH_ID", launch_id + "2")
    assert own_incarnation() != greeting.incarnation
