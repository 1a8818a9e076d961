"""Faults of trainings with AutoResume under `tfdist launch`: after each, the weights are those of a run without it."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos_faults import damage, links
from benchmarks.chaos_faults import training_program as program
from benchmarks.chaos_faults.fault import Fault, Found, Kind, Trouble
from benchmarks.chaos_faults.job import Job, Process
from tfdist.checkpoint.memory import folder_of
from tfdist.cluster.exit_codes import RESTART_CODE

DEADLINE_SECONDS = 420.0
SECOND_COPY_SECONDS = 180.0
_AFTER_SIGTERM = (RESTART_CODE, 128 + signal.SIGTERM, 0)
_KERASES = ["Keras 3", *(["tf_keras"] if importlib.util.find_spec("tf_keras") else [])]
_TWO = tuple(f"{name}, two workers" for name in _KERASES)
_ALL = (*(f"{name}, one device" for name in _KERASES), *_TWO)
_PHASES = ("starting", "tracing", "training", "training", "evaluating")
_PLACES = tuple(f"worker {worker}, {phase}" for worker in (0, 1) for phase in _PHASES)
_SAVES = ("worker 0, on disk", "worker 0, in memory", "worker 1, in memory")
_LINKS = (Kind(name="link cut", where=("for seconds", "for ever"), setups=_TWO),)
KINDS = (
    Kind(name="SIGKILL of a worker", where=_PLACES, setups=_ALL),
    Kind(name="SIGTERM of a worker", where=_PLACES, setups=_ALL),
    Kind(name="SIGKILL of a worker while saving", where=_SAVES, setups=_ALL),
    Kind(name="SIGKILL of a worker", where=_PLACES, setups=_TWO),
    Kind(name="SIGSTOP of a worker", where=("worker 0, training", "worker 1, training"), setups=_TWO),
    Kind(name="SIGKILL of the launcher", where=_PLACES, setups=_ALL),
    Kind(name="SIGTERM of the launcher", where=_PLACES, setups=_ALL),
    Kind(name="damaged snapshot", where=damage.HOW, setups=_ALL),
    Kind(name="SIGKILL of a worker with standby", where=_PLACES, setups=_ALL),
    Kind(name="started twice", where=("worker 0, training", "worker 1, training"), setups=_TWO),
    *(_LINKS if links.available() else ()),
)
# The results of runs without faults, by setup.
_references: dict[str, dict] = {}


def run(fault: Fault, folder: Path) -> Found:
    """Makes a fault and checks what follows.

    Args:
        fault: the fault.
        folder: an empty folder.
    """
    found = Found()
    workers = 2 if fault.setup.endswith("two workers") else 1
    expected = _reference(fault.setup, workers, folder.with_name(f"{folder.name}-reference"))
    job = _job(fault, workers, folder)
    try:
        if fault.kind == "link cut":
            links.cut(fault, folder, job.env, found)
        else:
            _ACTIONS[fault.kind](fault, job, found)
        job.check_no_orphans(found)
        _check(expected, workers, folder, found)
    finally:
        job.kill_all()
        for worker in range(workers):
            left = folder_of(str(folder / "run"), worker)
            found.check(not left.exists(), f"{left} is left in shared memory")
            shutil.rmtree(left, ignore_errors=True)
    return found


def _command(folder: Path, workers: int) -> list[str]:
    strategy = "multi_worker_mirrored" if workers > 1 else "one_device"
    return [program.__file__, "--folder", str(folder), "--strategy", strategy]


def _env(setup: str) -> dict[str, str]:
    return {"TF_USE_LEGACY_KERAS": str(int(setup.startswith("tf_keras"))), "TF_CPP_MIN_LOG_LEVEL": "2"}


def _job(fault: Fault, workers: int, folder: Path) -> Job:
    options = ["--workers", str(workers), "--max-restarts", "5", "--grace-seconds", "30"]
    command = _command(folder, workers)
    if fault.kind.endswith("while saving"):
        who, _, how = fault.where.partition(", ")
        # One worker is worker 0. The moment chooses the save, and the system call within it.
        save, call = divmod(fault.moment * 8, 1)
        victim = min(int(who.split()[1]), workers - 1)
        command += ["--die", how, "--victim", str(victim), "--save", str(int(save)), "--call", str(int(call * 30))]
    if fault.kind.endswith("with standby"):
        options.append("--standby")
    if fault.kind == "started twice":
        # The second copy imports TensorFlow while the first one trains.
        command += ["--pace-seconds", "1"]
    return Job(folder, options, command, deadline_seconds=DEADLINE_SECONDS, env=_env(fault.setup))


def _reference(setup: str, workers: int, folder: Path) -> dict:
    """Returns the result of a training without AutoResume and without a fault, which is made once for each setup."""
    if setup not in _references:
        folder.mkdir()
        command = [*_command(folder, workers), "--without-resume", "--pace-seconds", "0"]
        job = Job(folder, ["--workers", str(workers)], command, deadline_seconds=DEADLINE_SECONDS, env=_env(setup))
        found = Found()
        try:
            job.start()
            code = job.end(found)
        finally:
            job.kill_all()
        if code or found.troubles:
            raise RuntimeError(f"expected the reference run to succeed, received exit code {code}: {job.messages()}")
        _references[setup] = json.loads((folder / "result-0").read_text())
        shutil.rmtree(folder)
    return _references[setup]


def _check(expected: dict, workers: int, folder: Path, found: Found) -> None:
    """Checks the weights and the history of all workers, and that no scratch files are left."""
    for worker in range(workers):
        path = folder / f"result-{worker}"
        if not path.exists():
            found.add(Trouble.WRONG, f"worker {worker} has written no result")
            continue
        result = json.loads(path.read_text())
        for name, value in expected.items():
            found.check(result[name] == value, f"worker {worker} has another value of {name!r}", Trouble.WRONG)
    scratch = [path.name for path in (folder / "run").glob(".tfdist-*") if any(path.iterdir())]
    found.check(not scratch, f"the directory of the snapshots still has {scratch}")


def _wait_for_moment(job: Job, fault: Fault, place: str) -> Process | None:
    """Waits for the phase of a worker and a moment within it, and returns the process of the worker."""
    name, _, phase = place.partition(", ")
    process = job.find_task(name if "two" in fault.setup else "worker 0")
    if process is None:
        return None
    path = job.folder / f"phases-{json.loads(process.env['TF_CONFIG'])['task']['index']}"

    def times(phase: str) -> int:
        return path.read_text().split().count(phase) if path.exists() else 0

    if phase == "starting":
        time.sleep(5 * fault.moment)
    elif phase == "tracing":
        job.wait_until(lambda: times("tracing"))
        time.sleep(2 * fault.moment)
    elif phase == "training":
        job.wait_until(lambda: job.step() >= max(1, int(fault.moment * program.STEPS)))
    else:
        count, within = divmod(fault.moment * program.EPOCHS, 1)
        job.wait_until(lambda: times("evaluating") > count)
        time.sleep(0.3 * within)
    return process


def _finish(job: Job, found: Found, *, says: str = "") -> None:
    code = job.end(found)
    text = job.messages()
    next_step = f", next step after {job.recovery_seconds:.1f} s" if job.recovery_seconds is not None else ""
    found.end = f"{found.end}exit code {code}, {job.restarts()} restarts{next_step}"
    found.check(code == 0, f"expected the job to end with exit code 0, received {code}: {text}", Trouble.WRONG)
    found.check(not says or not job.restarts() or says in text, f"expected the launcher to say {says!r}: {text}")


def _kill(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    process = _wait_for_moment(job, fault, fault.where)
    if fault.kind.endswith("with standby"):
        job.find(lambda one: one.is_standby)
    job.strike(process, signal.SIGKILL)
    _finish(job, found, says="killed by SIGKILL")


def _terminate(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    process = _wait_for_moment(job, fault, fault.where)
    if process is not None:
        process.send(signal.SIGTERM)
    # Before TensorFlow is imported, SIGTERM ends the process at once.
    _finish(job, found)
    asks = "asked for a restart (exit code 75" in job.messages() or "killed by SIGTERM" in job.messages()
    found.check(asks or not job.restarts(), f"expected exit code 75 after SIGTERM, received: {job.messages()}")


def _kill_while_saving(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    _finish(job, found, says="killed by SIGKILL")


def _stop(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    process = _wait_for_moment(job, fault, fault.where)
    if process is not None:
        process.send(signal.SIGSTOP)
    _finish(job, found)
    name = fault.where.partition(",")[0]
    named = f"{name} is stopped" in job.text() or not job.restarts()
    found.check(named, f"expected the log of the other worker to say that {name} is stopped")


def _kill_launcher(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    _wait_for_moment(job, fault, fault.where)
    job.kill_launcher()
    job.check_no_orphans(found)
    job.start()
    _finish(job, found)


def _terminate_launcher(fault: Fault, job: Job, found: Found) -> None:
    job.start()
    _wait_for_moment(job, fault, fault.where)
    _leave(job, found)
    job.start()
    _finish(job, found)


def _leave(job: Job, found: Found) -> None:
    """Ends the job with SIGTERM to its launcher."""
    job.launcher.send_signal(signal.SIGTERM)
    code, text = job.end(found), job.messages()
    found.check(code in _AFTER_SIGTERM, f"expected one of the exit codes {_AFTER_SIGTERM}, received {code}: {text}")
    found.end = f"exit code {code}, then "
    job.check_no_orphans(found)


def _damage(fault: Fault, job: Job, found: Found) -> None:
    """Damages the newest snapshot on disk while the job is down, as if the memory of the host was lost with it."""
    job.start()
    job.wait_until(lambda: job.step() >= max(5, int(fault.moment * program.STEPS)))
    if fault.moment < 0.5:
        job.kill_launcher()
        job.check_no_orphans(found)
    else:
        _leave(job, found)
    for worker in range(2):
        shutil.rmtree(folder_of(str(job.folder / "run"), worker), ignore_errors=True)
    newest = max((job.folder / "run").glob("snapshot-*"), default=None)
    what = "there is no snapshot"
    if newest is not None:
        # One of the files, by the digits of the moment that are not used otherwise.
        files = sorted(newest.iterdir())
        what = damage.damage(files[int(fault.moment * 1e6) % len(files)], fault.where, fault.moment * 1e3 % 1)
    job.start()
    found.end += f"{what}, then "
    _finish(job, found)
    # A flipped bit of the manifest may be one of a version, which is for people only.
    says_so = newest is None or "is not used: " in job.text() or "manifest" in what
    found.check(says_so, f"{what}: expected a line that the snapshot is not used")


def _start_twice(fault: Fault, job: Job, found: Found) -> None:
    """Starts a second copy of a worker in the middle of the training, with the same environment."""
    job.start()
    process = _wait_for_moment(job, dataclasses.replace(fault, moment=fault.moment / 5), fault.where)
    if process is not None:
        words = [sys.executable, *process.words[1:-1]]
        output = job.folder / "second.log"
        with output.open("wb") as log:
            second = subprocess.Popen(
                words, cwd=job.folder, env=dict(process.env), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + SECOND_COPY_SECONDS
        while second.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if second.poll() is None:
            found.add(Trouble.HANG, f"the second copy did not end within {SECOND_COPY_SECONDS:.0f} s")
            os.killpg(second.pid, signal.SIGKILL)
            second.wait()
        lines = output.read_text(errors="replace").strip().splitlines()
        found.end = f"the second copy ended with {second.returncode}: {lines[-1] if lines else 'it said nothing'}; "
        # The launcher ends the second copy if the first one has finished.
        ended = job.launcher.poll() is not None
        refused = second.returncode not in (0, None) and lines
        found.check(refused or ended, "expected the second copy to be refused with a message")
    _finish(job, found)


_ACTIONS: dict[str, Callable[[Fault, Job, Found], None]] = {
    "SIGKILL of a worker": _kill,
    "SIGKILL of a worker with standby": _kill,
    "SIGTERM of a worker": _terminate,
    "SIGKILL of a worker while saving": _kill_while_saving,
    "SIGSTOP of a worker": _stop,
    "SIGKILL of the launcher": _kill_launcher,
    "SIGTERM of the launcher": _terminate_launcher,
    "damaged snapshot": _damage,
    "started twice": _start_twice,
}
