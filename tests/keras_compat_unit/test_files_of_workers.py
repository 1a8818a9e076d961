from __future__ import annotations

import io
import os
import re
import types
from pathlib import Path

import numpy as np
import pytest

from tests.processes import launch
from tfdist import create_strategy, workers
from tfdist.keras_compat.files import by_chief
from tfdist.keras_compat.files.by_chief import follows, logged_by_chief, saved_by_chief, strategy_of_workers
from tfdist.keras_compat.version import keras
from tfdist.saving import replaced, save_model, written_by_chief
from tfdist.workers import is_chief, run_on_every_worker


def build(strategy=None):
    layers = keras().layers

    def make():
        model = keras().Sequential([layers.Input((2,)), layers.Dense(3), layers.BatchNormalization()])
        model.compile("adam", "mse")
        return model

    if strategy is None:
        return make()
    with strategy.scope():
        return make()


class Failing:
    """A model whose save writes half a file and then fails."""

    distribute_strategy = types.SimpleNamespace(extended=types.SimpleNamespace(should_checkpoint=True))

    def save(self, path):
        with open(path, "w") as file:
            file.write("half")
        raise OSError("no space left")


class Follower(Failing):
    """The model of a worker that is not the chief."""

    distribute_strategy = types.SimpleNamespace(extended=types.SimpleNamespace(should_checkpoint=False))

    def __init__(self):
        self.saved = []

    def save(self, path):
        self.saved.append(path)
        with open(path, "w") as file:
            file.write("mine")


@pytest.mark.parametrize(
    ("name", "options"), [(None, {}), ("one_device", {}), ("mirrored", {"devices": 2}), ("multi_worker_mirrored", {})]
)
def test_a_saved_model_is_one_file_that_loads(name, options, tmp_path):
    model = build(name and create_strategy(name, **options))
    path = str(tmp_path / "new" / "folder" / "model.keras")
    save_model(model, path)
    assert os.listdir(os.path.dirname(path)) == ["model.keras"]
    for mine, saved in zip(model.get_weights(), keras().models.load_model(path).get_weights(), strict=True):
        np.testing.assert_array_equal(mine, saved)


def test_a_file_name_without_a_folder_is_saved_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(build(), "model.keras")
    assert os.listdir(tmp_path) == ["model.keras"]


def test_an_existing_file_is_replaced(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    save_model(build(), path)
    assert os.listdir(tmp_path) == ["model.keras"]
    keras().models.load_model(str(path))


@pytest.mark.parametrize("name", ["model", "model.h5", "model.keras.zip", "model.KERAS"])
def test_a_name_that_does_not_end_in_keras_is_refused(name, tmp_path):
    path = str(tmp_path / name)
    message = f"expected a file name that ends in .keras, received {path!r}; append .keras."
    with pytest.raises(ValueError, match=re.escape(message)):
        save_model(build(), path)
    assert os.listdir(tmp_path) == []


def test_a_save_that_fails_keeps_the_old_file_and_removes_the_scratch_file(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    with pytest.raises(OSError, match="no space left"):
        save_model(Failing(), str(path))
    assert os.listdir(tmp_path) == ["model.keras"]
    assert path.read_text() == "old"


def test_a_worker_that_is_not_the_chief_saves_too_and_keeps_no_file(tmp_path):
    model = Follower()
    save_model(model, str(tmp_path / "model.keras"))
    assert len(model.saved) == 1
    assert os.listdir(tmp_path) == []


CHIEF = Failing.distribute_strategy
FOLLOWER = Follower.distribute_strategy


def everything_in(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


@pytest.fixture
def two_workers(monkeypatch):
    """Makes every strategy count as a strategy of two workers. Returns the list of the numbers of the other worker."""
    other = []

    def exchange(strategy, numbers, *, dtype, to):
        own, theirs = tuple(numbers), tuple(other.pop(0)) if other else tuple(numbers)
        return [own, theirs] if is_chief(strategy) else [theirs, own]

    monkeypatch.setattr(workers, "exchange", exchange)
    monkeypatch.setattr(by_chief, "count_workers", lambda strategy: 1 if strategy is None else 2)
    return other


@pytest.mark.parametrize("old", [None, "old"])
def test_a_file_appears_only_when_it_is_complete(old, tmp_path):
    path = tmp_path / "model.keras"
    if old:
        path.write_text(old)
    with written_by_chief(str(path), CHIEF) as scratch, open(scratch, "w") as file:
        file.write("half")
        file.flush()
        assert os.path.basename(scratch) == "model.keras"
        assert Path(scratch).parents[2] == tmp_path
        assert (path.read_text() if path.exists() else None) == old
        file.write(", whole")
    assert everything_in(tmp_path) == ["model.keras"]
    assert path.read_text() == "half, whole"


@pytest.mark.parametrize("context", [lambda path: written_by_chief(path, CHIEF), replaced])
@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
def test_an_error_keeps_the_old_file_and_removes_the_scratch_file(context, error, tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    with pytest.raises(type(error)), context(str(path)) as scratch:
        Path(scratch).write_text("half")
        raise error
    assert everything_in(tmp_path) == ["model.keras"]
    assert path.read_text() == "old"


def test_a_save_of_several_files_moves_the_file_last_that_names_the_others(tmp_path, monkeypatch):
    moved = []
    rename = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (moved.append(os.path.basename(b)), rename(a, b)))
    with written_by_chief(str(tmp_path / "new" / "ckpt"), CHIEF) as scratch:
        folder = Path(scratch).parent
        for name in ("checkpoint", "ckpt.index", "ckpt.data-00000-of-00001"):
            (folder / name).write_text(name)
    assert moved == ["ckpt.data-00000-of-00001", "ckpt.index", "checkpoint"]
    assert everything_in(tmp_path / "new") == ["checkpoint", "ckpt.data-00000-of-00001", "ckpt.index"]


def test_a_folder_appears_complete_and_a_second_save_keeps_files_of_others(tmp_path, monkeypatch):
    def save(text):
        with written_by_chief(str(tmp_path / "model"), CHIEF) as scratch:
            os.makedirs(os.path.join(scratch, "variables"))
            Path(scratch, "variables", "data").write_text(text)
            Path(scratch, "saved_model.pb").write_text(text)

    moved = []
    rename = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (moved.append(os.path.relpath(b, tmp_path)), rename(a, b)))
    save("one")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    save("two")
    assert moved == ["model", "model/variables/data", "model/saved_model.pb"]
    assert everything_in(tmp_path / "model") == ["notes.txt", "saved_model.pb", "variables", "variables/data"]
    assert (tmp_path / "model" / "saved_model.pb").read_text() == "two"


def test_a_follower_writes_nothing_into_the_folder_of_the_file(tmp_path):
    path = tmp_path / "new" / "model.keras"
    with written_by_chief(str(path), FOLLOWER) as scratch:
        Path(scratch).write_text("mine")
        assert os.path.basename(scratch) == "model.keras"
        assert os.listdir(tmp_path) == []
    assert not os.path.exists(os.path.dirname(scratch))
    assert os.listdir(tmp_path) == []


def test_a_follower_keeps_a_file_that_the_chief_did_not_name(tmp_path, two_workers):
    two_workers.append([0, 1])
    path = tmp_path / "mine.keras"
    with written_by_chief(str(path), FOLLOWER) as scratch:
        Path(scratch).write_text("mine")
    assert everything_in(tmp_path) == ["mine.keras"]


def test_two_spellings_of_a_path_are_the_same_path(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(workers, "exchange", lambda _, numbers, **__: said.append(numbers) or [tuple(numbers)])
    monkeypatch.chdir(tmp_path)
    for path in ("model.keras", f"{tmp_path}/model.keras", f"{tmp_path}/x/../model.keras", "other.keras"):
        with written_by_chief(path, FOLLOWER):
            pass
    assert said[0] == said[2] == said[4] != said[6]


@pytest.mark.parametrize("strategy", [CHIEF, FOLLOWER])
def test_the_failure_of_another_worker_before_the_save_keeps_the_old_file(strategy, tmp_path, two_workers):
    two_workers.append([1, 0])
    path = tmp_path / "model.keras"
    path.write_text("old")
    other = 1 if strategy is CHIEF else 0
    message = f"expected every worker to save {str(path)!r}, received an error on worker {other}; see the log"
    with pytest.raises(OSError, match=re.escape(message)), written_by_chief(str(path), strategy):
        raise AssertionError("expected the body of the with statement not to run")
    assert everything_in(tmp_path) == ["model.keras"]
    assert path.read_text() == "old"


def test_the_failure_of_another_worker_within_the_save_is_reported(tmp_path, two_workers):
    two_workers.extend([[0, 0], [1]])
    with (
        pytest.raises(OSError, match="received an error on worker 1"),
        written_by_chief(str(tmp_path / "model.keras"), CHIEF) as scratch,
    ):
        Path(scratch).write_text("mine")


def test_an_action_returns_the_values_of_every_worker_or_raises(two_workers):
    two_workers.extend([[0, 5, 6], [0, 7, 8], [1, 0, 0], [0, 9, 9]])
    assert run_on_every_worker(CHIEF, lambda: (1, 2), width=2, to="count") == [(1, 2), (5, 6)]
    assert run_on_every_worker(FOLLOWER, lambda: (1, 2), width=2, to="count") == [(7, 8), (1, 2)]
    with pytest.raises(OSError, match="expected every worker to count, received an error on worker 1; see"):
        run_on_every_worker(CHIEF, lambda: (1, 2), width=2, to="count")
    with pytest.raises(ZeroDivisionError):
        run_on_every_worker(CHIEF, lambda: (1 // 0, 2), width=2, to="count")


def test_a_model_of_one_worker_has_no_strategy_of_workers():
    for name in (None, "one_device", "mirrored", "multi_worker_mirrored"):
        model = build(name and create_strategy(name))
        assert strategy_of_workers(model) is None
        assert not follows(model)


@pytest.mark.parametrize("attribute", ["_distribute_strategy", "_distribution_strategy"])
def test_the_strategy_of_a_model_is_found_in_either_keras(attribute, two_workers):
    assert strategy_of_workers(types.SimpleNamespace(**{attribute: FOLLOWER})) is FOLLOWER
    assert follows(types.SimpleNamespace(**{attribute: FOLLOWER}))
    assert not follows(types.SimpleNamespace(**{attribute: CHIEF}))


def test_saving_functions_are_called_unchanged_if_one_process_saves_or_no_file_is_named(tmp_path, two_workers):
    seen = []
    save = saved_by_chief(lambda model, filepath, overwrite=True: seen.append((filepath, overwrite)))
    path = str(tmp_path / "model.keras")
    save(types.SimpleNamespace(), path, overwrite=False)
    several, stream = types.SimpleNamespace(_distribute_strategy=CHIEF), io.BytesIO()
    save(several, stream)
    save(several, "hf://me/model")
    assert seen == [(path, False), (stream, True), ("hf://me/model", True)]


@pytest.mark.parametrize(("answer", "expected"), [(True, "new"), (False, "old")])
def test_the_question_about_an_existing_file_names_that_file(answer, expected, tmp_path, two_workers, monkeypatch):
    path = tmp_path / "model.keras"
    path.write_text("old")
    asked = []
    monkeypatch.setattr(by_chief.inspect, "getmodule", lambda _: types.SimpleNamespace(io_utils=asking))
    asking = types.SimpleNamespace(ask_to_proceed_with_overwrite=lambda path: asked.append(path) or answer)
    save = saved_by_chief(lambda model, filepath, overwrite=True: Path(filepath).write_text("new"))
    save(types.SimpleNamespace(_distribute_strategy=CHIEF), path, overwrite=False)
    assert asked == [str(path)]
    assert path.read_text() == expected


@pytest.mark.parametrize(("strategy", "expected"), [(CHIEF, "log.csv"), (FOLLOWER, os.devnull)])
def test_the_log_of_a_follower_is_discarded(strategy, expected, two_workers):
    opened = []
    callback = types.SimpleNamespace(filename="log.csv", model=types.SimpleNamespace(_distribute_strategy=strategy))
    logged_by_chief(lambda self, logs: opened.append(self.filename))(callback)
    assert opened == [expected]
    assert callback.filename == "log.csv"


TWO_WORKERS = """
import os, time
import tfdist
import numpy as np
import tensorflow as tf
from tfdist import workers
from tfdist.keras_compat.version import keras
from tfdist.workers import is_chief

strategy = tfdist.create_strategy("multi_worker_mirrored", startup_timeout_seconds=60)


def make():
    with strategy.scope():
        layers = keras().layers
        model = keras().Sequential([layers.Input((2,)), layers.Dense(3), layers.BatchNormalization()])
        model.compile("adam", "mse")
        return model


model = make()
for path in ("blocked/model.keras", "blocked/model.weights.h5"):
    try:
        (model.save if path.endswith(".keras") else model.save_weights)(path)
        print("SAVED", path)
    except OSError as error:
        print("OUTCOME", type(error).__name__, error)
if is_chief(strategy):
    # The other worker finds the file only if it waits for the chief.
    time.sleep(2)
model.save("model.keras")
print("LOADED", len(keras().models.load_model("model.keras").weights))
model.save_weights("model.weights.h5")
model.load_weights("model.weights.h5")
own = f"own-{strategy.cluster_resolver.task_id}/model.h5"
model.save(own)
print("OWN", os.path.exists(own))
model.export("exported")
loaded = tf.saved_model.load("exported")
print("EXPORTED", loaded.serve(tf.ones([1, 2])).shape)
own = workers.worker_index(strategy)
values = workers.sum_over_workers(strategy, np.array([1 + own, 10])).tolist()
print("SUM", values, workers.exchange(strategy, [own + 0.5], dtype="float64", to="add"))


class Interrupt(keras().callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyError


# All workers read and assign batch statistics together.
x, y = np.ones((8, 2)), np.ones((8, 3))
backup = lambda: keras().callbacks.BackupAndRestore("backup")
try:
    model.fit(x, y, batch_size=4, epochs=4, verbose=0, callbacks=[backup(), Interrupt()])
except KeyError:
    print("RESTORED", make().fit(x, y, batch_size=4, epochs=4, verbose=0, callbacks=[backup()]).epoch)
print("LOGGED", make().fit(x, y, batch_size=4, verbose=0, callbacks=[keras().callbacks.CSVLogger("log.csv")]).epoch)
"""


def test_two_workers_fail_together_and_save_together(tmp_path):
    (tmp_path / "program.py").write_text(TWO_WORKERS)
    (tmp_path / "blocked").write_text("a file, not a folder")
    ended = launch("--workers", "2", "--", "program.py", cwd=tmp_path, deadline_seconds=120)
    assert ended.code == 0
    assert ended.text.count("received an error on worker 0; see the log of that worker.") == 2
    assert len(re.findall(r"\[worker 0\] OUTCOME FileExistsError", ended.text)) == 2
    for worker in (0, 1):
        assert f"[worker {worker}] LOADED" in ended.text
        assert f"[worker {worker}] OWN True" in ended.text
        assert f"[worker {worker}] EXPORTED (1, 3)" in ended.text
        assert f"[worker {worker}] SUM [3, 20] [(0.5,), (1.5,)]" in ended.text
        assert f"[worker {worker}] RESTORED [2, 3]" in ended.text
        assert f"[worker {worker}] LOGGED [0]" in ended.text
    files = [name for name in everything_in(tmp_path) if not name.endswith(".log")]
    assert [name for name in files if "model" in name and "exported" not in name] == [
        "model.keras",
        "model.weights.h5",
        "own-0/model.h5",
        "own-1/model.h5",
    ]
    assert not [name for name in files if ".tfdist-" in name]
    assert not [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 2
