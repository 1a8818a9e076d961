"""Runs in which all tasks start again after a failure."""

from __future__ import annotations

import io
import json
import os
import signal
import sys

import pytest

from tfdist.launch import LaunchSpec, launch, ports, supervisor

from .conftest import Launcher, wait_until

# The library records the steps of real programs. Each test adds what its tasks do in each attempt.
RECORDS = """
from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.cluster.launched import launched
from tfdist.cluster.progress import ProgressFile
me = launched()
attempt = me.attempt
progress = ProgressFile(me.progress_file)
name = f"{job}-{index}-{attempt}"
"""


def lines_with(text: str, part: str) -> list[str]:
    return [line for line in text.splitlines() if part in line]


def test_a_failed_task_starts_all_again_with_fresh_ports_a_new_attempt_and_logs_of_their_own(
    launcher: Launcher,
) -> None:
    program = (
        RECORDS
        + """
print(json.dumps([attempt, me.launch_id, config["cluster"], str(me.progress_file)]), flush=True)
say(name)
if attempt == 0:
    wait_for(f"worker-{1 - index}-0")
    if index == 1:
        progress.record(20)
        raise KeyError("boom")
    forever()
"""
    )
    done = launcher.run("--workers", "2", "--max-restarts", "3", program=program)
    assert done.code == 0
    written = {
        (index, attempt): json.loads(launcher.log(f"worker-{index}{suffix}.log").splitlines()[0])
        for index in (0, 1)
        for attempt, suffix in ((0, ""), (1, ".attempt-1"))
    }
    assert {key[1]: value[0] for key, value in written.items()} == {0: 0, 1: 1}
    assert len({value[1] for value in written.values()}) == 1
    assert written[0, 0][2] == written[1, 0][2]
    first, second = (set(written[0, attempt][2]["worker"]) for attempt in (0, 1))
    assert not first & second
    assert {value[3] for value in written.values()} == {
        str(launcher.place / "logs" / f"worker-{index}.progress") for index in (0, 1)
    }
    assert "KeyError: 'boom'" in launcher.log("worker-1.log")
    assert "tfdist launch: worker 1 failed (exit code 1, at step 21), restart 1 of 3\n" in done.err
    assert "tfdist launch: 1 restart:\n" in done.err
    assert " s after the start: worker 1 failed (exit code 1, at step 21), restart 1 of 3\n" in done.err
    assert "all 2 tasks ended with exit code 0" in done.err
    assert sorted(path.name for path in (launcher.place / "logs").iterdir()) == [
        "worker-0.attempt-1.log", "worker-0.log", "worker-1.attempt-1.log", "worker-1.log",
    ]  # fmt: skip
    assert launcher.alive() == {}


def test_by_default_nothing_starts_again(launcher: Launcher) -> None:
    done = launcher.run(program=RECORDS + "say(name)\nsys.exit(3)")
    assert done.code == 3
    assert not (launcher.place / "worker-0-1").exists()
    assert "restart" not in done.err


def test_a_fixed_port_base_keeps_its_ports(launcher: Launcher, free_ports) -> None:
    (port,) = free_ports(1)
    # The launcher must be able to hold the port itself, so that it is only likely to be free.
    program = RECORDS + "print(config['cluster'], flush=True)\nsys.exit(0 if attempt else 3)"
    done = launcher.run("--port-base", str(port), "--max-restarts", "1", program=program)
    assert done.code == 0
    assert lines_with(done.out, str(port)) == [f"[worker 0] {{'worker': ['localhost:{port}']}}"] * 2


def test_the_restarts_end_with_the_limit_and_the_last_failure_is_reported(launcher: Launcher) -> None:
    program = RECORDS + "progress.record(attempt)\nprint('attempt', attempt)\nsys.exit(10 + attempt)"
    done = launcher.run("--max-restarts", "2", program=program)
    assert done.code == 12
    assert "worker 0 failed first: exit code 12, " in done.err
    assert "last lines of worker 0 (logs/worker-0.attempt-2.log):\n    attempt 2\n" in done.err
    assert "tfdist launch: 2 restarts:\n" in done.err
    assert "tfdist launch: not restarted: the limit of 2 restarts is used up\n" in done.err


def test_a_task_that_fails_at_one_step_three_times_ends_the_run_with_its_traceback(launcher: Launcher) -> None:
    program = (
        RECORDS
        + """
progress.record(811)
if index == 1:
    raise ValueError("a bad record")
forever()
"""
    )
    done = launcher.run("--workers", "2", "--max-restarts", "50", program=program)
    assert done.code == 1
    assert done.err.count("ending worker 0\n") == 3
    assert "    ValueError: a bad record\n" in done.err
    assert "tfdist launch: not restarted: step 812 failed three times on worker 1\n" in done.err


def test_the_task_that_raised_the_exception_is_named_if_another_ends_before_it(launcher: Launcher) -> None:
    program = (
        RECORDS
        + """
progress.record(100 + index)
if index == 1:
    import atexit
    atexit.register(forever)
    atexit.register(say, f"raised-{attempt}")
    raise KeyError("the cause")
wait_for(f"raised-{attempt}")
raise ValueError("the consequence")
"""
    )
    done = launcher.run("--workers", "2", "--max-restarts", "50", program=program)
    assert done.code == 1
    assert "tfdist launch: not restarted: step 102 failed three times on worker 1\n" in done.err
    assert "    KeyError: 'the cause'\n" in done.err


def test_a_task_that_fails_before_its_first_step_three_times_ends_the_run(launcher: Launcher) -> None:
    done = launcher.run("--max-restarts", "50", program="sys.exit(4)")
    assert done.code == 4
    assert "not restarted: worker 0 failed three times in a row before it recorded a step\n" in done.err


def test_progress_of_an_earlier_attempt_does_not_count_for_the_next(launcher: Launcher) -> None:
    program = (
        RECORDS
        + """
if attempt == 0:
    progress.record(5)
sys.exit(4)
"""
    )
    done = launcher.run("--max-restarts", "2", program=program)
    assert len(lines_with(done.err, "at step 6)")) == 2
    assert lines_with(done.err, "restart 2 of 2")[0] == "tfdist launch: worker 0 failed (exit code 4), restart 2 of 2"


def test_exit_code_75_without_restarts_is_passed_on(launcher: Launcher) -> None:
    done = launcher.run("--workers", "2", program=RECORDS + "sys.exit(RESTART_CODE)")
    assert done.code == 75
    assert " asked for a restart: exit code 75, " in done.err
    assert "failed" not in done.err


def test_tasks_that_ask_for_a_restart_do_not_use_up_the_limit_of_crashes(launcher: Launcher) -> None:
    program = (
        RECORDS
        + """
progress.record(attempt)
sys.exit([RESTART_CODE, RESTART_CODE, 3, RESTART_CODE, 0][attempt])
"""
    )
    done = launcher.run("--max-restarts", "1", program=program)
    assert done.code == 0
    assert "worker 0 asked for a restart (exit code 75, at step 4), restart on request 3 of 100\n" in done.err
    assert "tfdist launch: 4 restarts:\n" in done.err


def test_the_limit_of_requests_ends_the_run_with_75(launcher: Launcher) -> None:
    program = RECORDS + "progress.record(attempt)\nsys.exit(RESTART_CODE)"
    done = launcher.run("--max-preemptions", "1", program=program)
    assert done.code == 75
    assert "not restarted: the limit of 1 restart on request is used up\n" in done.err


def test_a_crash_is_not_restarted_if_only_requests_are(launcher: Launcher) -> None:
    done = launcher.run("--max-preemptions", "5", program="sys.exit(3)")
    assert done.code == 3
    assert "restart" not in done.err


@pytest.mark.parametrize(("code", "expected"), [(75, 75), (0, 143), (3, 143)])
def test_after_a_signal_to_the_launcher_nothing_starts_again(launcher: Launcher, code: int, expected: int) -> None:
    program = (
        RECORDS
        + f"""
signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
say(name)
forever()
"""
    )
    started = launcher.start("--workers", "2", "--max-restarts", "3", "--", str(launcher.write(program)))
    started.wait_for("worker-0-0"), started.wait_for("worker-1-0")
    started.process.send_signal(signal.SIGTERM)
    done = started.end()
    assert done.code == expected
    assert ("the tasks ask for a restart with exit code 75" in done.err) == (code == 75)
    assert not (launcher.place / "worker-0-1").exists()


def test_tasks_that_save_their_state_after_exit_code_75_are_not_killed(launcher: Launcher) -> None:
    # The grace period after failures would end worker 1 before it has saved its state.
    program = (
        RECORDS
        + """
if attempt:
    sys.exit(0)
if index == 0:
    wait_for("ready")
    sys.exit(RESTART_CODE)
def save(*_):
    time.sleep(0.5)
    say("saved")
    sys.exit(RESTART_CODE)
signal.signal(signal.SIGTERM, save)
say("ready")
forever()
"""
    )
    options = ("--workers", "2", "--max-restarts", "1", "--restart-grace-seconds", "0")
    assert launcher.run(*options, program=program).code == 0
    assert (launcher.place / "saved").exists()


def test_a_signal_in_the_delay_before_a_restart_ends_the_run(launcher: Launcher) -> None:
    # The third attempt comes after a delay, which the signal ends.
    program = RECORDS + "say(name)\nsys.exit(3)"
    script = launcher.write(program)
    started = launcher.start("--max-restarts", "9", "--", str(script))
    assert started.process.stderr is not None
    read = []
    for line in started.process.stderr:
        read.append(line)
        if ", in 1 s" in line:
            break
    started.process.send_signal(signal.SIGTERM)
    done = started.end()
    assert done.code == 143
    assert "ended by SIGTERM after " in done.err
    assert not (launcher.place / "worker-0-2").exists()


def test_a_signal_while_the_others_are_ended_prevents_the_restart(launcher: Launcher) -> None:
    program = (
        RECORDS
        + """
say(name)
if index == 0:
    signal.signal(signal.SIGTERM, lambda *_: say("asked to end"))
    wait_for("let go")
    sys.exit(0)
wait_for("worker-0-0")
sys.exit(3)
"""
    )
    arguments = ("--workers", "2", "--max-restarts", "3", "--restart-grace-seconds", "25", "--grace-seconds", "25")
    started = launcher.start(*arguments, "--", str(launcher.write(program)))
    started.wait_for("asked to end")
    started.process.send_signal(signal.SIGTERM)
    (launcher.place / "let go").touch()
    done = started.end()
    assert done.code == 143
    assert "ended by SIGTERM after " in done.err
    assert not (launcher.place / "worker-0-1").exists()


def test_what_the_old_tasks_have_started_is_gone_before_the_new_tasks_start(launcher: Launcher) -> None:
    program = (
        RECORDS
        + """
if attempt:
    try:
        stat = open("/proc/" + open(os.path.join(here, "grandchild")).read() + "/stat").read()
        print("state", stat.rpartition(")")[2].split()[0])
    except FileNotFoundError:
        print("state Z")
    sys.exit(0)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
say("grandchild", child.pid)
sys.exit(3)
"""
    )
    done = launcher.run("--max-restarts", "1", "--restart-grace-seconds", "0.1", program=program)
    assert done.code == 0
    assert "[worker 0] state Z\n" in done.out
    assert launcher.alive() == {}


def test_tasks_that_ignore_the_signal_delay_a_restart_by_the_restart_grace_only(launcher: Launcher) -> None:
    # The usual grace period is longer than the deadline of the test.
    program = (
        RECORDS
        + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(name)
if attempt == 0:
    wait_for(f"worker-{1 - index}-0")
    if index == 1:
        sys.exit(3)
    forever()
"""
    )
    arguments = ("--workers", "2", "--max-restarts", "1", "--grace-seconds", "600", "--restart-grace-seconds", "0.1")
    assert launcher.run(*arguments, program=program).code == 0


def test_logs_of_restarts_of_an_earlier_run_are_removed(launcher: Launcher) -> None:
    logs = launcher.place / "logs"
    logs.mkdir()
    for name in ("worker-0.attempt-1.log", "worker-7.attempt-2.log", "mine.attempt-1.log", "worker-0.attempt-1.txt"):
        (logs / name).touch()
    assert launcher.run(program="").code == 0
    assert {path.name for path in logs.iterdir()} == {"mine.attempt-1.log", "worker-0.attempt-1.txt", "worker-0.log"}


def test_after_the_launcher_is_killed_the_tasks_of_a_later_attempt_end(launcher: Launcher) -> None:
    program = (
        RECORDS
        + """
if attempt == 0:
    sys.exit(3)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
say(name)
forever()
"""
    )
    arguments = ("--max-restarts", "1", "--grace-seconds", "0.5", "--log-dir", "logs")
    started = launcher.start(*arguments, "--", str(launcher.write(program)))
    started.wait_for("worker-0-1")
    started.process.kill()
    started.process.wait(30)
    wait_until(lambda: not launcher.alive(), "no process is left")


def test_a_command_that_disappears_before_a_restart_is_one_sentence(launcher: Launcher) -> None:
    script = launcher.write("#!/bin/sh", "program")
    script.write_text(f"#!/bin/sh\nrm {script}\nexit 3\n")
    os.chmod(script, 0o755)
    done = launcher.start("--max-restarts", "1", "--", str(script)).end()
    assert done.code == 127
    assert done.err.endswith(
        f"tfdist launch: expected a command that exists, received {str(script)!r}; check its spelling and PATH.\n"
    )
    assert launcher.alive() == {}


def test_a_restart_that_cannot_begin_is_tried_again(monkeypatch, tmp_path) -> None:
    calls = []

    def check_host(host: str) -> None:
        calls.append(host)
        if len(calls) in (2, 3):
            raise ValueError("expected --host to be a name or address of this machine, received 'node7'")

    monkeypatch.setattr(ports, "check_host", check_host)
    monkeypatch.setattr(supervisor, "_START_AGAIN_SECONDS", (0.01, 0.01))
    program = "import os, sys; sys.exit(3 if os.environ['TFDIST_ATTEMPT'] == '0' else 0)"
    spec = LaunchSpec(command=(sys.executable, "-c", program), workers=2, max_restarts=1, log_dir=tmp_path)
    err = io.StringIO()
    assert launch(spec, out=io.StringIO(), err=err).exit_code == 0
    assert err.getvalue().count("the tasks could not be started again: expected --host") == 2

    calls.clear()
    monkeypatch.setattr(supervisor, "_START_AGAIN_SECONDS", ())
    err = io.StringIO()
    result = launch(spec, out=io.StringIO(), err=err)
    assert (result.exit_code, len(result.restarts)) == (3, 1)
    assert "failed first: exit code 3" in err.getvalue()
    assert "not restarted: the tasks could not be started again" in err.getvalue()
