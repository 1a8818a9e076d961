"""BackgroundWriter: one job at a time in a thread, which several threads may wait for."""

from __future__ import annotations

import threading

from tfdist.checkpoint.writer import BackgroundWriter


def test_a_wait_with_a_limit_ends_before_a_job_that_hangs():
    writer, go_on = BackgroundWriter(), threading.Event()
    writer.start(go_on.wait, to="hang")
    assert not writer.wait(0.01)
    waiting = [threading.Thread(target=writer.wait) for _ in range(4)]
    for thread in waiting:
        thread.start()
    go_on.set()
    for thread in waiting:
        thread.join(10)
    assert not any(thread.is_alive() for thread in waiting)
    assert writer.wait()


def test_an_error_of_the_system_is_reported_and_one_of_another_kind_is_no_success(caplog, monkeypatch):
    def full() -> None:
        raise OSError("no space left")

    def broken() -> None:
        raise KeyError("part")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    writer = BackgroundWriter()
    writer.start(full, to="write the snapshot of step 3")
    assert not writer.wait()
    assert "could not write the snapshot of step 3: no space left; the training goes on" in caplog.text
    writer.start(broken, to="write the snapshot of step 4")
    assert not writer.wait()
    writer.start(lambda: None, to="write the snapshot of step 5")
    assert writer.wait()
