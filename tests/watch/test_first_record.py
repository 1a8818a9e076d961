"""The other workers learn of a worker's process and place as soon as its watch starts."""

from __future__ import annotations

import os

import tfdist
from tests.watch.test_mesh import DEADLINE_SECONDS, fields, meshes, wait_for
from tfdist.watch import Watch, restart_on_loss, watch
from tfdist.watch.phases import OUTSIDE, TRACING
from tfdist.watch.record import Record


def test_a_watch_sends_its_first_record_before_the_first_heartbeat(monkeypatch):
    monkeypatch.setattr(watch, "_TICK_SECONDS", 10 * DEADLINE_SECONDS)
    monkeypatch.setattr(watch, "restart_on_loss", restart_on_loss.RestartOnLoss)
    monkeypatch.setattr(restart_on_loss.RestartOnLoss, "begin", lambda self: None)
    with meshes(2, heartbeat_seconds=10 * DEADLINE_SECONDS) as (first, second):
        monkeypatch.setattr(watch, "mesh_of", lambda strategy: first)
        with Watch(tfdist.create_strategy("one_device")):
            wait_for(lambda: "watch.phase" in fields(second.states()[0]))
            record = Record.from_fields(fields(second.states()[0]))
        assert record is not None
        assert (record.phase, record.pid) == (TRACING, os.getpid())
        assert record.at.startswith("test_first_record.py")
        assert Record.from_fields(fields(first.states()[0])).phase == OUTSIDE
