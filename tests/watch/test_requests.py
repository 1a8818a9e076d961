"""Workers ask each other for their stacks and to end, and an error of a lost worker asks for a restart."""

from __future__ import annotations

import io
import sys
import time

import pytest

from tests.watch.test_mesh import wait_for
from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.watch import restart_on_loss
from tfdist.watch.mesh import Mesh
from tfdist.watch.restart_on_loss import RestartOnLoss
from tfdist.watch.udp import open_socket

ASKED = """
import sys, time
from tfdist.watch.mesh import Mesh
from tfdist.watch.requests import Requests

mesh = Mesh(1, [("localhost", int(port)) for port in sys.argv[1:]], token=5)
Requests.of(mesh)

def wait_here():
    print("buffered", end="")
    mesh.publish(is_ready=True)
    time.sleep(600)

wait_here()
"""


def test_another_worker_writes_its_stacks_and_ends_when_asked(children):
    sockets = [open_socket(), open_socket()]
    ports = [one.getsockname()[1] for one in sockets]
    sockets[1].close()
    child = children.start(ASKED, *map(str, ports))
    mesh = Mesh(0, [("localhost", port) for port in ports], token=5, udp=sockets[0])
    try:
        wait_for(lambda: mesh.states()[1] is not None and mesh.states()[1].fields.get("is_ready") is True)
        for number in (1, 2):
            mesh.publish(urgent=True, **{"watch.dump": number})
        mesh.publish(urgent=True, **{"watch.end": "the training has stalled"})
        ended = child.end()
    finally:
        mesh.close()
    assert ended.code == RESTART_CODE
    assert ended.err.count("worker 0 reports that the training makes no step") == 1
    assert "in wait_here" in ended.err
    assert "exit code 75, because worker 0 says: the training has stalled" in ended.err
    assert ended.out == "buffered"


def test_leave_does_not_wait_for_a_stream_that_blocks(children):
    ended = children.run(
        """
        import os, sys, threading, time
        from tfdist.watch.leave import leave

        reader, writer = os.pipe()
        sys.stdout = os.fdopen(writer, "w")
        # Nobody reads: the thread holds the lock of the stream when the pipe is full.
        threading.Thread(target=print, args=("x" * 10_000_000,), daemon=True).start()
        time.sleep(0.5)
        leave()
        """
    )
    assert ended.code == RESTART_CODE


@pytest.mark.parametrize(
    ("seconds_since_the_stall", "kind", "leaves"),
    [
        (None, "UnavailableError", True),
        (None, "DeadlineExceededError", True),
        (None, "InvalidArgumentError", False),
        # A link that was cut for some seconds is back before TensorFlow notices that its connections are lost.
        (30.0, "UnavailableError", True),
        (90.0, "UnavailableError", False),
    ],
)
def test_an_error_of_a_lost_worker_asks_for_a_restart_during_a_stall_and_soon_after(
    seconds_since_the_stall, kind, leaves, monkeypatch
):
    import tensorflow as tf

    left: list[bool] = []
    monkeypatch.setattr(restart_on_loss, "leave", lambda: left.append(True))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    one = RestartOnLoss()
    one.expect("worker 1 is stopped")
    if seconds_since_the_stall is not None:
        one.forget()
        now = time.monotonic() + seconds_since_the_stall
        monkeypatch.setattr(restart_on_loss.time, "monotonic", lambda: now)
    error = getattr(tf.errors, kind)(None, None, "planted")
    sys.excepthook(type(error), error, None)
    assert bool(left) == leaves
    assert sys.stderr.getvalue().count("planted") == 1
    # A hook of another library, which calls this one, is left in place.
    monkeypatch.setattr(sys, "excepthook", lambda *failure, former=sys.excepthook: former(*failure))
    one.expect("worker 1 is stopped again")
    sys.excepthook(type(error), error, None)
    assert sys.stderr.getvalue().count("planted") == 2


@pytest.mark.parametrize(
    ("kind", "text", "leaves"),
    [
        ("DeadlineExceededError", "Deadline Exceeded RPC: /tensorflow.CoordinationService/Heartbeat", True),
        ("UnavailableError", "These tasks are unhealthy (stopped sending heartbeats): /job:worker/task:1", True),
        ("DeadlineExceededError", "Collective ops is aborted by: the sum took too long", False),
        ("InvalidArgumentError", "stopped sending heartbeats", False),
    ],
)
def test_lost_heartbeats_ask_for_a_restart_before_a_stall_is_reported(kind, text, leaves, monkeypatch):
    import tensorflow as tf

    left: list[bool] = []
    monkeypatch.setattr(restart_on_loss, "leave", lambda: left.append(True))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    RestartOnLoss().begin()
    error = getattr(tf.errors, kind)(None, None, text)
    sys.excepthook(type(error), error, None)
    assert bool(left) == leaves
