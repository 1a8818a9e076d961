"""notebook.run: what it returns, which exception it raises, what it shows, and what it refuses."""

from __future__ import annotations

import linecache
import os
import re
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from tests.processes import ROOT, finish, run, start
from tfdist import notebook


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_surroundings: None) -> None:
    """The launcher writes its logs to the current folder. The tasks find this checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def index() -> int:
    import json

    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def test_the_value_of_the_chief_is_returned() -> None:
    scale = 10

    def value(first: int, *, second: int) -> list[int]:
        return [first + second, scale * (index() + 1)]

    assert notebook.run(value, args=[1], kwargs={"second": 2}, workers=2) == [3, 10]


def test_each_task_is_a_new_process() -> None:
    assert notebook.run(os.getpid, workers=1) != os.getpid()


def test_the_cell_shows_the_lines_of_all_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    notebook.run(lambda: print("hello from", index()), workers=2)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "[worker 0] hello from 0" in shown
    assert "[worker 1] hello from 1" in shown


def test_the_exception_of_the_task_that_failed_first_is_raised() -> None:
    def fail() -> None:
        if index() == 0:
            time.sleep(60)
        raise LookupError("no such record")

    with pytest.raises(LookupError, match="no such record") as raised:
        notebook.run(fail, workers=2)
    cause = raised.value.__cause__
    assert isinstance(cause, notebook.TaskTraceback)
    assert str(cause).startswith("worker 1:\nTraceback (most recent call last):\n")
    # The traceback begins in the function, and not in the program that calls it.
    assert str(cause).count("  File ") == 1
    assert 'raise LookupError("no such record")' in str(cause)


def test_the_traceback_shows_the_lines_of_a_cell() -> None:
    text = "def fail():\n    raise LookupError('in a cell')\n"
    name, names = "<cell 12>", {"__name__": "__main__"}
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), names)
    with pytest.raises(LookupError, match="in a cell") as raised:
        notebook.run(names["fail"], workers=1)
    assert f"File \"{name}\", line 2, in fail\n    raise LookupError('in a cell')" in str(raised.value.__cause__)


def test_an_exception_that_cannot_be_pickled_is_named() -> None:
    def fail() -> None:
        error = LookupError("no such record")
        error.lock = threading.Lock()
        raise error

    with pytest.raises(RuntimeError, match="worker 0 raised LookupError: no such record") as raised:
        notebook.run(fail, workers=1)
    assert isinstance(raised.value.__cause__, notebook.TaskTraceback)


def test_a_task_that_is_killed_is_named_with_its_last_lines() -> None:
    def die() -> None:
        print("almost done", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RuntimeError, match=r"received worker 0: killed by SIGKILL; the logs are in (.|\n)*almost done"):
        notebook.run(die, workers=1)


def test_tasks_start_again_after_a_failure() -> None:
    def second_time() -> str:
        first = Path(f"first-{index()}")
        if index() == 1 and not first.exists():
            first.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return os.environ["TFDIST_ATTEMPT"]

    assert notebook.run(second_time, workers=2, max_restarts=1) == "1"


def test_the_exception_after_the_last_restart_is_raised() -> None:
    def fail() -> None:
        first = Path("first")
        if index() == 0 and not first.exists():
            first.touch()
            raise LookupError("at first")
        if index() == 1 and first.exists() and os.environ["TFDIST_ATTEMPT"] == "1":
            raise KeyError("at last")
        time.sleep(60)

    with pytest.raises(KeyError, match="at last"):
        notebook.run(fail, workers=2, max_restarts=1)


def test_a_time_limit_ends_all_tasks() -> None:
    with pytest.raises(TimeoutError, match="expected the tasks to end within 2 s, received no end; the logs are in "):
        notebook.run(time.sleep, args=[60], workers=2, timeout_seconds=2.0)


def test_an_interrupt_ends_all_tasks(tmp_path: Path) -> None:
    program = """
        import os, time
        from tfdist import notebook

        def wait():
            open(f"pid-{os.getpid()}", "w").close()
            time.sleep(600)

        try:
            notebook.run(wait, workers=2)
        except KeyboardInterrupt:
            print("INTERRUPTED")
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    process = start([sys.executable, "program.py"], cwd=tmp_path)
    end = time.monotonic() + 60
    while len(list(tmp_path.glob("pid-*"))) < 2:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert "INTERRUPTED" in finish(process, deadline_seconds=60).text
    for path in tmp_path.glob("pid-*"):
        assert not Path("/proc", path.name.removeprefix("pid-")).exists()


def test_a_module_runs_with_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_module.py").write_text("import sys\nprint('received', sys.argv[1:])\n")
    assert notebook.run("own_module", args=["--epochs", 3], workers=1, env={"PYTHONPATH": f"{ROOT}:."}) is None
    assert "received ['--epochs', '3']" in capsys.readouterr().out


def test_a_variable_may_be_a_whole_number() -> None:
    assert notebook.run(os.getenv, args=["A"], workers=1, env={"A": 1}) == "1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"function": 3}, "expected a function, or the name of a module as text, received int; define a function"),
        (
            {"function": "own_module", "kwargs": {"epochs": 3}},
            r"expected no kwargs with a module, received \['epochs'\]",
        ),
        ({"function": print, "workers": 0}, "expected at least one task, received none"),
        (
            {"function": print, "args": "hello"},
            r"expected args to be a list of arguments, received 'hello'; write args=",
        ),
        ({"function": print, "args": 0.1}, r"received 0.1; write args=\[0.1\]"),
        (
            {"function": print, "args": {"rate": 0.1}},
            r"expected args to be a list of arguments, received {'rate': 0.1}",
        ),
        ({"function": print, "kwargs": [0.1]}, r"expected kwargs to be a dict with names, received \[0.1\]"),
        ({"function": print, "env": ["A=1"]}, r"expected env to be a dict with names, received \['A=1'\]"),
        ({"function": print, "env": {"A": None}}, "expected the value of A in env to be a text, received None"),
        ({"function": "own/train.py"}, "received the file 'own/train.py'; write 'own.train'"),
        ({"function": print, "args": [threading.Lock()]}, "received one with the argument 1, a lock, which cannot be"),
        ({"function": print, "kwargs": {"end": threading.Lock()}}, "received one with the argument 'end', a lock"),
        ({"function": print, "workers": "2"}, "expected workers to be a whole number, received '2'"),
        ({"function": print, "ps": 1.0}, "expected ps to be a whole number, received 1.0"),
        ({"function": print, "max_restarts": True}, "expected max_restarts to be a whole number, received True"),
        ({"function": print, "threads_per_task": "1"}, "expected threads_per_task to be a whole number or None"),
        ({"function": print, "timeout_seconds": "9"}, "expected timeout_seconds to be a number of seconds or None"),
        ({"function": print, "log_dir": 3}, "expected log_dir to be the path of a directory or None, received 3"),
        ({"function": print, "verbose": "no"}, "expected verbose to be True or False, received 'no'"),
        ({"function": threading.Lock}, "expected a function that returns numbers, arrays, texts, a History, or lists"),
    ],
)
def test_what_cannot_run_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        notebook.run(**{"workers": 1, **options})


def test_the_variable_that_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(ValueError, match="received one with the variable 'lock', a lock, which cannot be sent"):
        notebook.run(lambda: lock, workers=1)


TRAINING = """
import sys
import numpy as np
from tests.warm.launch import use_warm_tasks
from tfdist import notebook

use_warm_tasks()


def train(own):
    import numpy as np
    import tensorflow as tf
    import tfdist

    strategy = tfdist.create_strategy()
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(8)
    history = model.fit(data, epochs=2, verbose=1 if own == "bar" else 0)
    if own == "model":
        return model
    return {"history": history, "weights": model.weights, "replicas": strategy.num_replicas_in_sync}


found = notebook.run(train, args=["bar"], workers=2)
print("RESULT", found["replicas"], len(found["history"].history["loss"]), found["history"].epoch)
print("ARRAYS", [type(weight) is np.ndarray and weight.shape for weight in found["weights"]])
try:
    notebook.run(train, args=["model"], workers=1)
except ValueError as error:
    print("REFUSED", error)
"""


def test_a_training_returns_its_history_and_arrays(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAINING)
    ended = run([sys.executable, "program.py"], cwd=tmp_path, deadline_seconds=150)
    assert "RESULT 2 2 [0, 1]" in ended.text
    assert "ARRAYS [(4, 1), (1,)]" in ended.text
    assert "received Sequential, which cannot be sent to the notebook (a Keras model, which belongs" in ended.text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", ended.text)
    assert re.search(r"\[worker 0\] 4/4 .*step - loss: ", plain)
    # The bars of the other workers are in their logs.
    assert not re.search(r"\[worker 1\] \d/4 ", plain)
