"""Runs in which a task fails: which task is reported, with which lines, and how the others end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tfdist

from .conftest import DEADLINE_SECONDS, Launcher

# Every task but worker 1 runs until the launcher ends it. Worker 1 waits until worker 0 has started. Each test adds the
# code with which worker 1 fails.
OTHERS = """
say(f"{job}-{index}", os.getpid())
if (job, index) != ("worker", 1):
    forever()
wait_for("worker-0")
"""


def test_the_failed_task_is_reported_with_its_traceback_and_its_exit_code(launcher: Launcher) -> None:
    program = OTHERS + "print('step 1')\nraise KeyError('boom')"
    done = launcher.run("--workers", "2", program=program)
    assert done.code == 1
    assert "tfdist launch: worker 1 failed (exit code 1, " in done.err
    assert " s after the start); ending worker 0\n" in done.err
    report = done.err[done.err.index("worker 1 failed first: exit code 1, ") :]
    assert "last lines of worker 1 (logs/worker-1.log):\n    Traceback (most recent call last):\n" in report
    assert "    KeyError: 'boom'\n" in report
    assert "step 1" not in report
    assert done.err.endswith(
        "tfdist launch: logs in logs\n"
        "tfdist launch: next: read logs/worker-1.log; `tfdist launch --workers 2 -- tfdist doctor` checks what makes "
        "clusters fail\n"
    )
    assert "worker 0" not in report
    assert launcher.alive() == {}


def test_the_exit_code_is_that_of_the_failed_task_and_its_last_lines_are_shown(launcher: Launcher) -> None:
    program = OTHERS + "print(*range(100), sep='\\n')\nsys.exit(7)"
    done = launcher.run("--workers", "2", program=program)
    assert done.code == 7
    report = done.err[done.err.index("failed first: exit code 7") :]
    assert "    70\n" in report
    assert "    69\n" not in report


def test_a_killed_task_is_noticed_and_the_exit_code_is_that_of_its_signal(launcher: Launcher) -> None:
    command = ("--workers", "2", "--log-dir", "logs", "--", str(launcher.write(OTHERS + "forever()")))
    started = launcher.start(*command)
    started.wait_for("worker-0")
    os.kill(int(started.wait_for("worker-1")), signal.SIGKILL)
    done = started.end()
    assert done.code == 137
    assert "worker 1 failed first: killed by SIGKILL, " in done.err
    assert launcher.alive() == {}


def test_the_first_of_two_failures_shortly_after_each_other_is_reported(launcher: Launcher) -> None:
    # Worker 0 fails by itself shortly after worker 1 has ended, as a collective operation does.
    program = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if index == 1:
    say("pid", os.getpid())
    wait_for("ready")
    os._exit(5)
wait_for("pid")
pid = open(os.path.join(here, "pid")).read()
say("ready")
while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z":
    pass
time.sleep(0.05)
os._exit(6)
"""
    done = launcher.run("--workers", "2", "--grace-seconds", "25", program=program)
    assert done.code == 5
    assert "worker 1 failed first: exit code 5" in done.err
    assert "worker 0 failed" not in done.err


def test_a_task_that_raised_earlier_and_is_slow_to_end_is_named(launcher: Launcher) -> None:
    program = """
if index == 1:
    import atexit
    atexit.register(forever)
    raise KeyError("the cause")
log = os.path.join(here, "logs", "worker-1.log")
while not os.path.exists(log) or "the cause" not in open(log).read():  # Until the launcher has read it.
    time.sleep(0.01)
raise ValueError("the consequence")
"""
    done = launcher.run("--workers", "2", program=program)
    assert "worker 1 failed first: an exception, " in done.err
    assert re.search(r"\n  worker 0 ended by itself \S+ s later \(exit code 1\), probably as a consequence\n", done.err)
    assert "next: read logs/worker-1.log; " in done.err
    assert "last lines of worker 1 (logs/worker-1.log):\n    Traceback" in done.err
    assert "    KeyError: 'the cause'\n" in done.err


def test_a_task_that_has_handled_its_exception_is_not_named_as_the_first_to_fail(launcher: Launcher) -> None:
    program = """
if index == 1:
    import traceback
    try:
        raise KeyError("handled")
    except KeyError:
        traceback.print_exc()
    time.sleep(1.5)  # A task that is ending writes nothing of its own for so long.
    print("step 1", "step 2", "on with it", sep="\\n", flush=True)
    forever()
log = os.path.join(here, "logs", "worker-1.log")
while not os.path.exists(log) or "on with it" not in open(log).read():
    time.sleep(0.01)
raise ValueError("the cause")
"""
    done = launcher.run("--workers", "2", program=program)
    assert "worker 0 failed first: exit code 1" in done.err
    assert "worker 1 had written a traceback" in done.err
    assert "next: read logs/worker-0.log; " in done.err


def test_tasks_that_the_launcher_ends_are_not_reported_and_their_last_lines_are_only_logged(
    launcher: Launcher,
) -> None:
    program = """
def leave(*_):
    print("told to end")
    sys.exit(9)

signal.signal(signal.SIGTERM, leave)
print("at work")
say(f"{job}-{index}")
if index == 0:
    forever()
wait_for("worker-0")
sys.exit(4)
"""
    done = launcher.run("--workers", "2", "--grace-seconds", "25", program=program)
    assert done.code == 4
    assert "[worker 0] at work\n" in done.out
    assert "told to end" not in done.out
    assert launcher.log("worker-0.log") == "at work\ntold to end\n"
    assert "exit code 9" not in done.err


def test_a_task_that_ignores_sigterm_is_killed_after_the_grace_period(launcher: Launcher) -> None:
    program = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(f"{job}-{index}")
if index == 0:
    forever()
wait_for("worker-0")
sys.exit(4)
"""
    done = launcher.run("--workers", "2", "--grace-seconds", "0.3", program=program)
    assert done.code == 4
    assert launcher.alive() == {}


@pytest.mark.parametrize("job", ["chief", "ps", "evaluator"])
def test_a_task_of_every_job_can_fail_the_run(launcher: Launcher, job: str) -> None:
    program = f"""
say(job)
if job != {job!r}:
    forever()
wait_for("worker")
sys.exit(8)
"""
    done = launcher.run("--ps", "1", "--evaluator", program=program)
    assert done.code == 8
    assert f"{job} 0 failed first: exit code 8, " in done.err


def test_a_run_past_its_timeout_is_ended_with_124_and_names_the_running_tasks(launcher: Launcher) -> None:
    done = launcher.run("--workers", "2", "--timeout-seconds", "0.5", program="forever()")
    assert done.code == 124
    assert "tfdist launch: the timeout of 0.5 s has passed; still running: worker 0, worker 1\n" in done.err
    assert launcher.alive() == {}


def test_a_closed_output_does_not_end_the_run(launcher: Launcher) -> None:
    program = "wait_for('closed')\nprint('nobody reads this')"
    reader, writer = os.pipe()
    started = launcher.start("--log-dir", "logs", str(launcher.write(program)), stdout=writer)
    os.close(reader)
    os.close(writer)
    (launcher.place / "closed").touch()
    assert started.end().code == 0
    assert launcher.log("worker-0.log") == "nobody reads this\n"


def test_a_number_of_tasks_beyond_the_limit_of_open_files_is_one_sentence(launcher: Launcher) -> None:
    launcher.write("")
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); "
    code += "from tfdist.launch import main; sys.exit(main(sys.argv[1:]))"
    program = ["-c", "import time; time.sleep(60)"]
    done = subprocess.run(
        [sys.executable, "-c", code, "--workers", "100", "--log-dir", "logs", "--", sys.executable, *program],
        cwd=launcher.place,
        env={**os.environ, "PYTHONPATH": str(Path(tfdist.__file__).parents[1])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "tfdist launch: expected enough open files for 100 tasks, received 'Too many open files'; start fewer tasks, "
        "or raise the limit with `ulimit -n`."
    )


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_of_a_run_with_a_closed_output_is_that_of_its_tasks(launcher: Launcher, code: int) -> None:
    launcher.write(f"print('line 1'); wait_for('closed'); print('line 2'); sys.exit({code})")
    started = launcher.start("--log-dir", "logs", "--", str(launcher.place / "task.py"))
    assert started.process.stdout is not None
    assert started.process.stdout.readline() == "[worker 0] line 1\n"
    started.process.stdout.close()
    (launcher.place / "closed").touch()
    assert started.process.stderr is not None
    err = started.process.stderr.read()
    assert started.process.wait(DEADLINE_SECONDS) == code
    assert launcher.log("worker-0.log") == "line 1\nline 2\n"
    assert "Broken" not in err
    assert "Traceback" not in err
