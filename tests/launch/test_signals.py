"""Signals to the launcher end all of its processes."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from .conftest import Launcher, wait_until

REPORTS_SIGNAL = """
def leave(number, frame):
    print("got", signal.Signals(number).name)
    sys.exit(0)

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, leave)
say(f"up-{index}")
forever()
"""

IGNORES_SIGNALS = """
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
say(f"up-{index}", os.getpid())
forever()
"""

# Each task starts two processes that ignore SIGTERM: one in the process group of the task, one in a session of its own.
HAS_GRANDCHILDREN = """
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
for own_session in (False, True):
    child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=own_session, stdout=subprocess.PIPE)
    child.stdout.readline()
say(f"up-{index}")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_is_passed_on_to_all_tasks(launcher: Launcher, number: signal.Signals) -> None:
    started = launcher.start(
        "--workers", "2", "--grace-seconds", "25", "--log-dir", "logs", str(launcher.write(REPORTS_SIGNAL))
    )
    started.wait_for("up-0"), started.wait_for("up-1")
    started.process.send_signal(number)
    done = started.end()
    assert done.code == 128 + number
    for index in (0, 1):
        assert f"[worker {index}] got {number.name}\n" in done.out
    assert f"tfdist launch: received {number.name}, passing it on to worker 0, worker 1\n" in done.err
    assert f"tfdist launch: ended by {number.name} after " in done.err
    assert "failed" not in done.err
    assert launcher.alive() == {}


def test_a_launcher_whose_parent_ignores_the_end_of_children_ends_with_its_tasks(launcher: Launcher) -> None:
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        started = launcher.start("--workers", "2", "--", str(launcher.write("sys.exit(3 * index)")))
    finally:
        signal.signal(signal.SIGCHLD, former)
    assert started.end().code == 3


def test_the_first_ctrl_c_does_not_kill_tasks_that_end_because_of_a_failure(launcher: Launcher) -> None:
    program = """
def save(number, frame):
    say("saving")
    wait_for("interrupted")
    time.sleep(0.5)
    say("saved")
    os._exit(0)

if index == 1:
    wait_for("up")
    os._exit(75)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, signal.SIG_IGN)
say("up")
forever()
"""
    started = launcher.start("--workers", "2", "--grace-seconds", "25", "--", str(launcher.write(program)))
    started.wait_for("saving")
    started.process.send_signal(signal.SIGINT)
    (launcher.place / "interrupted").touch()
    done = started.end()
    assert (launcher.place / "saved").exists()
    assert done.code == 75


def test_tasks_that_ignore_a_signal_are_killed_after_the_grace_period(launcher: Launcher) -> None:
    started = launcher.start("--workers", "2", "--grace-seconds", "0.3", "--", str(launcher.write(IGNORES_SIGNALS)))
    started.wait_for("up-0"), started.wait_for("up-1")
    started.process.send_signal(signal.SIGTERM)
    assert started.end().code == 128 + signal.SIGTERM
    assert launcher.alive() == {}


def test_a_second_interrupt_kills_at_once(launcher: Launcher) -> None:
    # The grace period is longer than the test's deadline, so only the second interrupt can end this run in time.
    started = launcher.start("--workers", "2", "--grace-seconds", "600", "--", str(launcher.write(IGNORES_SIGNALS)))
    started.wait_for("up-0"), started.wait_for("up-1")
    started.process.send_signal(signal.SIGINT)
    assert started.process.stderr is not None
    for line in started.process.stderr:
        if "received SIGINT" in line:
            break
    started.process.send_signal(signal.SIGINT)
    done = started.end()
    assert done.code == 130
    assert "tfdist launch: killing worker 0, worker 1\n" in done.err
    assert launcher.alive() == {}


def test_a_run_under_nohup_survives_the_end_of_its_terminal(launcher: Launcher) -> None:
    script = launcher.write("os.kill(os.getppid(), signal.SIGHUP)\nprint('still here')", "inner.py")
    inner = f"trap '' HUP; exec {sys.executable} -m tfdist.launch --workers 1 -- {script}"
    done = launcher.run("--", "sh", "-c", inner)
    assert done.code == 0
    assert "still here" in done.out


def test_each_task_has_a_session_of_its_own(launcher: Launcher) -> None:
    done = launcher.run("--workers", "2", program="print(os.getsid(0) == os.getpid() == os.getpgid(0))")
    assert sorted(done.out.splitlines()) == ["[worker 0] True", "[worker 1] True"]


def test_grandchildren_are_gone_after_success(launcher: Launcher) -> None:
    done = launcher.run("--grace-seconds", "0.3", program=HAS_GRANDCHILDREN)
    assert done.code == 0
    assert launcher.alive() == {}


def test_grandchildren_are_gone_after_a_failure(launcher: Launcher) -> None:
    done = launcher.run("--grace-seconds", "0.3", program=HAS_GRANDCHILDREN + "sys.exit(3)")
    assert done.code == 3
    assert launcher.alive() == {}


def test_a_program_that_a_shell_has_started_ends_with_the_shell(launcher: Launcher) -> None:
    script = launcher.write("say('up')\nforever()")
    started = launcher.start("--grace-seconds", "5", "--", "sh", "-c", f"{sys.executable} {script}; true")
    started.wait_for("up")
    started.process.send_signal(signal.SIGTERM)
    assert started.end().code == 143
    assert launcher.alive() == {}


def test_after_the_launcher_is_killed_its_tasks_grandchildren_and_guard_end(launcher: Launcher) -> None:
    script = launcher.write(HAS_GRANDCHILDREN + "forever()")
    started = launcher.start("--workers", "2", "--grace-seconds", "0.5", "--", str(script))
    started.wait_for("up-0"), started.wait_for("up-1")
    # The processes are the launcher, its guard, two tasks, and two children of each task.
    assert len(launcher.alive()) == 8
    started.process.send_signal(signal.SIGKILL)
    assert started.process.wait(30) == -signal.SIGKILL
    wait_until(lambda: not launcher.alive(), "no process is left")


def test_grandchildren_of_a_killed_launcher_may_end_by_themselves(launcher: Launcher) -> None:
    program = """
polite = (
    "import pathlib, signal, sys, time\\n"
    "def leave(*_):\\n"
    "    pathlib.Path(sys.argv[1]).touch()\\n"
    "    sys.exit()\\n"
    "signal.signal(signal.SIGTERM, leave)\\n"
    "print(flush=True)\\n"
    "time.sleep(60)"
)
command = [sys.executable, "-c", polite, os.path.join(here, "left politely")]
subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
say("up")
forever()
"""
    started = launcher.start("--grace-seconds", "25", "--", str(launcher.write(program)))
    started.wait_for("up")
    started.process.kill()
    wait_until(lambda: not launcher.alive(), "no process is left")
    assert (launcher.place / "left politely").exists()


def test_a_launcher_whose_guard_was_killed_goes_on_and_cleans_up(launcher: Launcher) -> None:
    started = launcher.start("--workers", "1", "--", str(launcher.write("say('up')\nwait_for('go on')")))
    started.wait_for("up")
    (guard,) = [pid for pid, command in launcher.alive().items() if "sweep.py" in command]
    os.kill(guard, signal.SIGKILL)
    (launcher.place / "go on").touch()
    assert started.end().code == 0
    assert launcher.alive() == {}


def test_a_guard_that_was_killed_is_replaced(launcher: Launcher) -> None:
    started = launcher.start(
        "--workers", "1", "--grace-seconds", "0.5", "--", str(launcher.write(HAS_GRANDCHILDREN + "forever()"))
    )
    started.wait_for("up-0")

    def guards() -> list[int]:
        return [pid for pid, command in launcher.alive().items() if "sweep.py" in command]

    (guard,) = guards()
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: guards() not in ([], [guard]), "there is another guard")
    started.process.kill()
    started.process.wait(30)
    wait_until(lambda: not launcher.alive(), "no process is left")


def test_a_launcher_within_a_launcher_is_ended_with_its_tasks(launcher: Launcher) -> None:
    inner = launcher.write("say('up')\nforever()", "inner.py")
    outer = ("--grace-seconds", "0.5", "--", sys.executable, "-m", "tfdist.launch")
    started = launcher.start(*outer, "--grace-seconds", "600", "--", str(inner))
    started.wait_for("up")
    started.process.kill()
    # The kernel kills the inner launcher with the outer one, and the inner tasks with the inner launcher.
    wait_until(lambda: not launcher.alive(), "no process is left")
