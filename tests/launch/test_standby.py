"""Restarts from standby processes. A small package takes the place of TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tfdist
from tfdist.launch import standby_program

from .conftest import DEADLINE_SECONDS, Launcher, Started, wait_until

# Writes the process id of each process that imports it without being a task yet.
FAKE_TENSORFLOW = """
import os, sys
print("importing tensorflow", flush=True)
if not os.environ["TF_CONFIG"]:
    with open(os.path.join(os.environ["MARKS"], str(os.getpid())), "w"):
        pass
from tensorflow import keras
"""

RECORDS = """
import tensorflow
from tfdist.cluster.launched import launched
from tfdist.cluster.progress import ProgressFile
attempt = launched().attempt
progress = ProgressFile(launched().progress_file)

def is_ready_or_gone(pid):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\\0")
        ready = words[words.index(next(word for word in words if word.endswith("standby_program.py"))) + 2]
        return not os.path.exists(f"/proc/{pid}/fd/{ready}")
    except (OSError, StopIteration):
        return True

def standbys(count):
    # A standby process closes its second pipe when it is ready.
    while len(found := os.listdir(os.environ["MARKS"])) < count or not all(map(is_ready_or_gone, found)):
        if time.monotonic() > end:
            sys.exit("waited too long for standby processes")
        time.sleep(0.01)
"""


@pytest.fixture
def env(launcher: Launcher) -> dict[str, str]:
    package = launcher.place / "path" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_TENSORFLOW)
    (package / "keras.py").write_text("layers = None\n")
    (launcher.place / "marks").mkdir()
    path = os.pathsep.join([str(package.parent), str(Path(tfdist.__file__).parents[1])])
    return {"PYTHONPATH": path, "MARKS": str(launcher.place / "marks")}


def marks(launcher: Launcher) -> list[int]:
    return sorted(int(path.name) for path in (launcher.place / "marks").iterdir())


def start(launcher: Launcher, program: str, env: dict[str, str], *args: str) -> Started:
    script = str(launcher.write(RECORDS + program))
    options = ("--standby", "--max-restarts", "2", "--log-dir", "logs", "--grace-seconds", "1")
    return launcher.start(*options, *args, "--", script, env=env)


def test_a_task_from_a_standby_process_finds_what_python_would_have_given_it(
    launcher: Launcher, env: dict[str, str]
) -> None:
    program = """
import pickle, __main__

class Value:
    pass

facts = {
    "argv": sys.argv, "path": sys.path, "name": __name__, "file": __file__,
    "spec": __spec__ and [__spec__.name, __spec__.origin],
    "package": __package__, "doc": __doc__, "globals": sorted(vars(__main__)), "main": __main__.Value is Value,
    "pickled": type(pickle.loads(pickle.dumps(Value()))) is Value, "stdin": sys.stdin.read(), "cwd": os.getcwd(),
    "environment": sorted(os.environ), "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "open": sorted(os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in (0, 1, 2)),
    "files": len(os.listdir("/proc/self/fd")), "flags": str(sys.flags),
    "handlers": [str(signal.getsignal(number)) for number in range(1, 32)],
}
progress.record(1)
if attempt == 0:
    standbys(2)
print(json.dumps(facts), flush=True)
sys.exit(0 if attempt else 3)
"""
    script = launcher.write(RECORDS + program)
    (launcher.place / "pkg").mkdir()
    (launcher.place / "pkg" / "__init__.py").touch()
    (launcher.place / "pkg" / "run.py").write_text(script.read_text())
    (launcher.place / "link.py").symlink_to(script)
    for command in (["task.py", "--a", "b c"], ["-m", "pkg.run", "--a"], ["link.py"]):
        for mark in (launcher.place / "marks").iterdir():
            mark.unlink()
        options = ("--workers", "2", "--standby", "--max-restarts", "1", "--log-dir", "logs")
        done = launcher.start(*options, "--", *command, env=env).end()
        assert done.code == 0
        assert "tfdist launch: standby processes become worker 0, worker 1\n" in done.err
        cold, warm = (
            json.loads(launcher.log(f"worker-1{suffix}.log").splitlines()[-1]) for suffix in ("", ".attempt-1")
        )
        assert warm == cold
        assert launcher.log("worker-1.attempt-1.log").startswith("importing tensorflow\n")
    assert launcher.alive() == {}


def test_a_failure_of_a_task_from_a_standby_process_is_reported_with_its_traceback(
    launcher: Launcher, env: dict[str, str]
) -> None:
    program = """
progress.record(attempt)
if attempt == 0:
    standbys(1)
    sys.exit(3)
raise KeyError("boom")
"""
    done = start(launcher, program, env, "--max-restarts", "1").end()
    assert done.code == 1
    assert "standby processes become worker 0\n" in done.err
    assert "    Traceback (most recent call last):\n" in done.err
    assert "    KeyError: 'boom'\n" in done.err
    assert launcher.alive() == {}


def test_standby_processes_start_only_after_a_step(launcher: Launcher, env: dict[str, str]) -> None:
    program = """
time.sleep(1.5)
count = len(os.listdir(os.environ["MARKS"]))
progress.record(1)
standbys(1)
print("before the first step:", count)
"""
    done = start(launcher, program, env).end()
    assert done.code == 0
    assert "[worker 0] before the first step: 0\n" in done.out
    assert launcher.alive() == {}


def test_a_standby_process_that_is_killed_is_replaced_and_fails_nothing(
    launcher: Launcher, env: dict[str, str]
) -> None:
    program = """
progress.record(1)
if attempt == 0:
    standbys(2)
    sys.exit(3)
"""
    started = start(launcher, program, env)
    wait_until(lambda: marks(launcher), "the standby process imports")
    os.kill(marks(launcher)[0], signal.SIGKILL)
    done = started.end()
    assert done.code == 0
    assert "the standby process of worker 0 has ended by itself\n" in done.err
    assert "standby processes become worker 0\n" in done.err


def test_without_tensorflow_the_tasks_start_again_without_standby_processes(
    launcher: Launcher, env: dict[str, str]
) -> None:
    (launcher.place / "path" / "tensorflow" / "keras.py").write_text(
        "import os\nif not os.environ['TF_CONFIG']:\n    raise ImportError('no keras')\n"
    )
    program = """
progress.record(1)
if attempt == 0:
    standbys(3)
    wait_for("seen")
    sys.exit(3)
"""
    started = start(launcher, program, env)
    wait_until(lambda: len(marks(launcher)) == 3, "the standby process was started three times")
    (launcher.place / "seen").touch()
    done = started.end()
    assert done.code == 0
    assert "become" not in done.err
    assert len(marks(launcher)) == 3


def test_a_standby_process_that_still_imports_does_not_become_the_task(launcher: Launcher, env: dict[str, str]) -> None:
    (launcher.place / "path" / "tensorflow" / "keras.py").write_text(
        "import os, time\nif not os.environ['TF_CONFIG']:\n    time.sleep(60)\nlayers = None\n"
    )
    program = """
progress.record(1)
if attempt == 0:
    while not os.listdir(os.environ["MARKS"]):
        time.sleep(0.01)
    sys.exit(3)
"""
    done = start(launcher, program, env).end()
    assert done.code == 0
    assert "become" not in done.err
    assert launcher.alive() == {}


def test_a_stopped_standby_process_does_not_become_the_task(launcher: Launcher, env: dict[str, str]) -> None:
    program = """
progress.record(1)
if attempt == 0:
    standbys(1)
    say("ready")
    wait_for("stopped")
    sys.exit(3)
"""
    started = start(launcher, program, env)
    started.wait_for("ready")
    (standby,) = marks(launcher)
    os.kill(standby, signal.SIGSTOP)
    (launcher.place / "stopped").touch()
    done = started.end()
    assert done.code == 0
    assert "become" not in done.err
    assert launcher.alive() == {}


def test_standby_processes_of_another_number_of_workers_are_not_used(launcher: Launcher, env: dict[str, str]) -> None:
    program = """
progress.record(1)
print("threads", os.environ["OMP_NUM_THREADS"])
if attempt == 0:
    standbys(2)
    sys.exit(3 if index else forever())
"""
    # One worker has the threads that two workers share.
    script = str(launcher.write(RECORDS + program))
    options = ("--standby", "--elastic", "1:2", "--workers", "2", "--log-dir", "logs", "--grace-seconds", "1")
    done = launcher.start(*options, "--", script, env=env).end()
    assert done.code == 0
    threads = [launcher.log(name).splitlines()[-1] for name in ("worker-0.log", "worker-0.attempt-1.log")]
    assert ("become" in done.err) == (threads[0] == threads[1])
    assert launcher.alive() == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_standby_processes_end_with_the_launcher(
    launcher: Launcher, env: dict[str, str], number: signal.Signals
) -> None:
    started = start(launcher, "progress.record(1)\nforever()", env)
    wait_until(lambda: marks(launcher), "the standby process imports")
    started.process.send_signal(number)
    started.process.wait(DEADLINE_SECONDS)
    wait_until(lambda: not launcher.alive(), "no process is left")


def test_importing_tensorflow_in_a_standby_process_does_not_start_it() -> None:
    # The program of a task chooses devices, threads and seeds, which is impossible once the context exists.
    program = f"""
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("standby_program", {standby_program.__file__!r})
standby = importlib.util.module_from_spec(spec)
spec.loader.exec_module(standby)
write = os.write
def ready(pipe, data):
    if pipe != 999:
        return write(pipe, data)
    from tensorflow.python.eager import context
    print("context", context._context, [name for name in ("keras", "tf_keras") if name in sys.modules])
    sys.stdout.flush()
    os._exit(0 if data == b"r" else 1)
os.write = ready
standby.main(0, 999, os.getppid(), ["task.py"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert done.stdout.startswith("context None [")
    assert "keras" in done.stdout
