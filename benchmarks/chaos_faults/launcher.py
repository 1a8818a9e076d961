"""Faults of `tfdist launch` and its tasks: plain Python programs that keep their state as a training does."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.chaos_faults import task
from benchmarks.chaos_faults.fault import Fault, Found, Kind, Trouble
from benchmarks.chaos_faults.job import ROOT, Job, Process
from tfdist.checkpoint.memory import folder_of
from tfdist.cluster.sockets import bind_all_interfaces

WORKERS = 2
STEPS = 60
DEADLINE_SECONDS = 120.0
# The exit codes of a launcher that has received SIGTERM: the tasks have saved their state, or had none, or were done.
_AFTER_SIGTERM = (75, 128 + signal.SIGTERM, 0)
_SETUPS = ("workers", "workers and evaluator")
_TASKS = ("worker 0", "worker 1", "evaluator 0")
KINDS = (
    Kind(name="SIGKILL of a task", where=_TASKS, setups=(*_SETUPS, "workers with standby")),
    Kind(name="SIGSTOP of a task", where=_TASKS, setups=_SETUPS),
    Kind(name="SIGTERM of a task", where=_TASKS, setups=_SETUPS),
    Kind(name="SIGKILL of the launcher", where=("then a restart", "a restart at once"), setups=_SETUPS),
    Kind(name="SIGSTOP of the launcher", where=("then SIGCONT", "then SIGKILL", "a worker dies"), setups=_SETUPS),
    Kind(name="SIGTERM of the launcher", where=("then a restart",), setups=_SETUPS),
    Kind(name="SIGKILL of the guard", where=("then of the launcher",), setups=_SETUPS),
    Kind(name="loss of a standby", where=("SIGKILL", "SIGSTOP"), setups=("workers with standby",)),
    Kind(name="port taken", where=("the first", "the second"), setups=_SETUPS),
    Kind(name="started twice", where=("worker 0", "worker 1", "all"), setups=_SETUPS),
)


def run(fault: Fault, folder: Path) -> Found:
    """Makes a fault and checks what follows.

    Args:
        fault: the fault.
        folder: an empty folder.
    """
    found = Found()
    job = _job(fault, folder)
    try:
        _ACTIONS[fault.kind](fault, job, found)
        job.check_no_orphans(found)
        _check(job, found)
    finally:
        job.kill_all()
        for worker in range(WORKERS):
            left = folder_of(str(task.snapshots_of(folder, worker)), worker)
            found.check(not left.exists(), f"{left} is left in shared memory")
            shutil.rmtree(left, ignore_errors=True)
    return found


def _job(fault: Fault, folder: Path) -> Job:
    options = ["--workers", str(WORKERS), "--max-restarts", "5", "--grace-seconds", "3"]
    options += ["--restart-grace-seconds", "0.5", "--evaluator-grace-seconds", "2"]
    env, pace = {}, 0.01
    if fault.setup == "workers and evaluator" or fault.where.startswith("evaluator"):
        options.append("--evaluator")
    if fault.setup == "workers with standby":
        options.append("--standby")
        # Stands in for TensorFlow, so that a standby process is ready at once.
        package = folder / "path" / "tensorflow"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("from tensorflow import keras\n")
        (package / "keras.py").write_text("layers = None\n")
        env["PYTHONPATH"] = os.pathsep.join([str(package.parent), str(ROOT)])
        pace = 0.03
    command = [task.__file__, "--folder", str(folder), "--steps", str(STEPS), "--pace-seconds", str(pace)]
    return Job(folder, options, command, deadline_seconds=DEADLINE_SECONDS, env=env)


def _check(job: Job, found: Found) -> None:
    """Checks what the job has left: the results, and no other files than those that belong to it."""
    for worker in range(WORKERS):
        path = job.folder / f"result-{worker}"
        if not path.exists():
            found.add(Trouble.WRONG, f"worker {worker} has written no result")
        elif path.read_bytes() != task.state_after(worker, STEPS).tobytes():
            found.add(Trouble.WRONG, f"the result of worker {worker} is another one than without the fault")
        directory = task.snapshots_of(job.folder, worker)
        scratch = [path.name for path in directory.glob(".tfdist-*") if any(path.iterdir())]
        found.check(not scratch, f"{directory} still has {scratch}")
    torn = job.folder / "torn"
    if torn.exists():
        found.add(Trouble.TORN, torn.read_text())
    left = [path.name for path in job.folder.glob("logs-*/*.progress")]
    found.check(not left or job.was_killed, f"the launcher has left {left}")
    for path in sorted(job.folder.glob("launcher-*.err")):
        text = path.read_text()
        own = [line for line in text.splitlines() if not line.startswith("  ")]
        found.check("Traceback" not in "\n".join(own), f"expected no traceback of the launcher, received: {text}")


def _wait_for_moment(job: Job, fault: Fault, name: str, *, latest: float = 1.0) -> Process | None:
    """Waits for the moment of a fault, and returns the process of a task: one moment of five is during its start."""
    process = job.find_task(name)
    if fault.moment < 0.2:
        # Python and its modules take a few tenths of a second.
        time.sleep(2 * fault.moment)
    else:
        step = (fault.moment - 0.2) / 0.8 * STEPS * latest
        job.wait_until(lambda: job.step() >= step)
    return process


def _finish(job: Job, found: Found, *, says: str = "") -> None:
    """Waits for the end of the job, which must be a success, and checks that a restart was for the right reason."""
    code = job.end(found)
    text = job.messages()
    found.end = f"exit code {code}, {job.restarts()} restarts" + (
        f", next step after {job.recovery_seconds:.1f} s" if job.recovery_seconds is not None else ""
    )
    found.check(code == 0, f"expected the job to end with exit code 0, received {code}: {text}", Trouble.WRONG)
    if says and job.restarts():
        found.check(says in text, f"expected the launcher to say {says!r}, received: {text}")


def _signal_a_task(number: int) -> Callable[[Fault, Job, Found], None]:
    said = {
        signal.SIGKILL: "{} failed (killed by SIGKILL",
        # The other worker asks for the restart, or the stopped evaluator is ended after the workers.
        signal.SIGSTOP: " asked for a restart (exit code 75",
        # Before the program has its handler, SIGTERM ends it.
        signal.SIGTERM: "{} ",
    }

    def act(fault: Fault, job: Job, found: Found) -> None:
        job.start()
        # A worker that is stopped after its last step is waited for by nobody but --timeout-seconds.
        latest = 0.8 if number == signal.SIGSTOP else 1.0
        job.strike(_wait_for_moment(job, fault, fault.where, latest=latest), number)
        _finish(job, found, says=said[number].format(fault.where))

    return act


def _kill_launcher(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    _wait_for_moment(job, fault, "worker 1")
    job.kill_launcher()
    if fault.where == "a restart at once":
        # The tasks of the first launcher may still be saving their state.
        job.start()
        code = job.end(found)
        text = job.messages()
        clear = code == 0 or "expected no other training in the directory" in text
        found.check(clear, f"expected success or a clear message, received exit code {code}: {text}")
    job.check_no_orphans(found)
    job.start()
    _finish(job, found)


def _stop_launcher(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    process = _wait_for_moment(job, fault, "worker 0")
    job.launcher.send_signal(signal.SIGSTOP)
    if fault.where == "a worker dies":
        job.strike(process, signal.SIGKILL)
    time.sleep(0.3)
    if fault.where == "then SIGKILL":
        job.kill_launcher()
        job.check_no_orphans(found)
        job.start()
    else:
        job.launcher.send_signal(signal.SIGCONT)
    _finish(job, found)


def _terminate_launcher(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    _wait_for_moment(job, fault, "worker 1")
    job.launcher.send_signal(signal.SIGTERM)
    code = job.end(found)
    text = job.messages()
    found.check(code in _AFTER_SIGTERM, f"expected one of the exit codes {_AFTER_SIGTERM}, received {code}: {text}")
    found.check("SIGTERM" in text or code == 0, f"expected a line about SIGTERM, received: {text}")
    job.check_no_orphans(found)
    job.start()
    _finish(job, found)
    found.end = f"exit code {code}, then {found.end}"


def _kill_guard(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    _wait_for_moment(job, fault, "worker 0", latest=0.5)
    guard = job.find(lambda process: process.is_guard)
    if guard is not None:
        guard.send(signal.SIGKILL)
        # The launcher looks after its guard every second.
        job.find(lambda process: process.is_guard and process.pid != guard.pid)
        job.kill_launcher()
        job.check_no_orphans(found)
        job.start()
    _finish(job, found)


def _lose_a_standby(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    worker = job.find_task("worker 0")
    standby = job.find(lambda process: process.is_standby)
    if standby is not None:
        # Its import takes some tenths of a second.
        time.sleep(fault.moment / 2)
        standby.send(signal.SIGKILL if fault.where == "SIGKILL" else signal.SIGSTOP)
        job.strike(worker, signal.SIGKILL)
    _finish(job, found, says="worker 0 failed (killed by SIGKILL")


def _take_a_port(fault: Fault, job: Job, found: Found) -> None:
    with _two_ports() as (first, sockets):
        port = first + (fault.where == "the second")
        sockets[port - first].listen()
        sockets[1 - (port - first)].close()
        job.start("--port-base", str(first))
        code = job.end(found)
        text = job.messages()
        clear = code == 2 and f"expected port {port} to be free for worker" in text
        found.check(clear, f"expected exit code 2 and a message about port {port}, received {code}: {text}")
        job.check_no_orphans(found)
    job.start("--port-base", str(first))
    _finish(job, found)


@contextlib.contextmanager
def _two_ports() -> Iterator[tuple[int, list[socket.socket]]]:
    """Yields a port, such that the next one is free, too, and two sockets that have these ports."""
    while True:
        sockets = [bind_all_interfaces(0)]
        port = sockets[0].getsockname()[1]
        try:
            sockets.append(bind_all_interfaces(port + 1))
            yield port, sockets
            return
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()


def _start_twice(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    process = _wait_for_moment(job, fault, "worker 0" if fault.where == "all" else fault.where, latest=0.8)
    if fault.where == "all":
        first = job.launcher
        job.start()
        code, text = job.end(found), job.messages()
        _check_second(code, text, found)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        found.check(first.poll() is not None, "the first job does not end", Trouble.HANG)
        text = job.messages(0)
        found.check(first.poll() == 0, f"expected the first job to succeed, received: {text}", Trouble.WRONG)
        found.end = f"the second ended with exit code {code}"
        return
    if process is not None:
        # The same environment, so that it takes itself for the same task.
        words = [sys.executable, *process.words[1:-1]]
        try:
            second = subprocess.run(
                words, env=dict(process.env), cwd=job.folder, capture_output=True, text=True, timeout=60
            )
            _check_second(second.returncode, second.stderr, found)
        except subprocess.TimeoutExpired:
            found.add(Trouble.HANG, "the second copy of the worker did not end within 60 s")
    _finish(job, found)


def _check_second(code: int | None, text: str, found: Found) -> None:
    # If the first one has ended, the second one finds a finished run. The launcher of the first one may end the second.
    clear = code in (0, -signal.SIGTERM, 75) or "expected no other training in the directory" in text
    found.check(clear, f"expected success or a clear message of the second copy, received exit code {code}: {text}")
    found.check("Traceback" not in text, f"expected no traceback of the second copy, received: {text}")


_ACTIONS: dict[str, Callable[[Fault, Job, Found], None]] = {
    "SIGKILL of a task": _signal_a_task(signal.SIGKILL),
    "SIGSTOP of a task": _signal_a_task(signal.SIGSTOP),
    "SIGTERM of a task": _signal_a_task(signal.SIGTERM),
    "SIGKILL of the launcher": _kill_launcher,
    "SIGSTOP of the launcher": _stop_launcher,
    "SIGTERM of the launcher": _terminate_launcher,
    "SIGKILL of the guard": _kill_guard,
    "loss of a standby": _lose_a_standby,
    "port taken": _take_a_port,
    "started twice": _start_twice,
}
