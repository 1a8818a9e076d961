"""A task that is stopped by a signal after all others have ended does not keep the run from ending."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tfdist.launch import LaunchSpec, launch, stopped
from tfdist.launch.stopped import StoppedTasks

PROGRAM = """
import json, os, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
if task == 1 and os.environ["TFDIST_ATTEMPT"] == "0":
    open("ready", "w").write(str(os.getpid()))
    time.sleep(60)
"""


@dataclasses.dataclass
class Process:
    group: int


def test_tasks_are_overdue_when_none_of_them_has_run_for_so_long():
    states, now = {1: "T", 2: "S"}, [0.0]
    tasks = StoppedTasks(seconds=5.0, state=lambda group: states[group], clock=lambda: now[0])
    both = [Process(1), Process(2)]

    def at(seconds: float) -> bool:
        now[0] = seconds
        return tasks.overdue(both)

    assert not at(100.0)
    states[2] = "T"
    assert not at(101.0)
    assert not at(105.0)
    states[1] = "R"
    assert not at(107.0)
    # A debugger that holds a process is not a signal.
    states[1] = "t"
    assert not at(120.0)
    states[1] = "T"
    assert [at(seconds) for seconds in (121.0, 125.0, 126.0)] == [False, False, True]


@pytest.mark.parametrize(("max_restarts", "code"), [(0, 128 + signal.SIGKILL), (1, 0)])
def test_a_stopped_task_is_killed_after_the_end_of_all_others(max_restarts, code, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(stopped, "STOPPED_SECONDS", 0.5)
    monkeypatch.chdir(tmp_path)
    ready = tmp_path / "ready"

    def stop() -> None:
        while not ready.exists() or not ready.read_text():
            time.sleep(0.01)
        os.kill(int(ready.read_text()), signal.SIGSTOP)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    limits = {"workers": 2, "max_restarts": max_restarts, "timeout_seconds": 30.0, "log_dir": tmp_path / "logs"}
    out, err = io.StringIO(), io.StringIO()
    result = launch(LaunchSpec(command=(sys.executable, "-c", PROGRAM), **limits), out=out, err=err)
    thread.join(5)
    print(err.getvalue())
    assert result.exit_code == code
    assert "stopped by a signal for 0.5 s after the end of all other tasks, killed now: worker 1" in err.getvalue()
    assert "worker 1 failed (killed by SIGKILL" in err.getvalue() or max_restarts == 0
