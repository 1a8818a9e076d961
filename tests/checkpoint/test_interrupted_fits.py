"""A fit that an error interrupts, and that is called again in the same process, ends with the same bits.

These tests are cheaper than killing a process, and show more states in which a fit can be interrupted.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.checkpoint import AutoResume, fits
from tfdist.checkpoint.disk import DiskTier
from tfdist.checkpoint.following import SnapshotFollower
from tfdist.checkpoint.in_use import NAME, InUse
from tfdist.checkpoint.memory import MemoryTier, folder_of
from tfdist.checkpoint.writer import BackgroundWriter
from tfdist.keras_compat import keras_in_use

keras = tf.keras
ROWS, BATCH, EPOCHS = 100, 16, 4


class InterruptionError(Exception):
    """What interrupts a fit."""


class Interrupt(keras.callbacks.Callback):
    """Raises an error after so many train batches, test batches or epochs of one fit, or at its end."""

    def __init__(self, *, train: int = 0, test: int = 0, epoch: int = 0, end: int = 0) -> None:
        super().__init__()
        self.left = {"train": train, "test": test, "epoch": epoch, "end": end}

    def count(self, kind: str) -> None:
        left = dict(self.left)
        left[kind] -= 1
        self.left = left
        if left[kind] == 0:
            raise InterruptionError

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count("train")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count("test")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count("epoch")

    def on_train_end(self, logs: Any = None) -> None:
        self.count("end")


@pytest.fixture(autouse=True)
def four_devices(four_cpus, no_surroundings):
    """Every test here runs in a process whose TensorFlow has four logical CPUs, and that knows of no cluster."""


@pytest.fixture(autouse=True)
def random_states_that_can_be_read():
    if not keras_in_use().is_keras3:
        keras.backend.experimental.enable_tf_random_generator()


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def fit(
    strategy: tf.distribute.Strategy,
    *callbacks: Any,
    dataset: Any = None,
    depends_on_replicas: bool = True,
    epochs: int = EPOCHS,
    compiled: dict[str, Any] | None = None,
    use_ema: bool = False,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """Makes a model and trains it; returns it and everything that must be equal after an interruption."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        layers = [
            keras.layers.Input((8,)),
            keras.layers.Dense(16, activation="tanh"),
            *([keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)] if depends_on_replicas else []),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        optimizer = keras.optimizers.Adam(0.01, use_ema=use_ema)
        model.compile(optimizer, "mse", metrics=["mae"], **(compiled or {}))
    x, y = data()
    given = (x, y) if dataset is None else (dataset(x, y),)
    if dataset is None:
        options["batch_size"] = BATCH
    history = model.fit(*given, epochs=epochs, verbose=0, callbacks=list(callbacks), **options)
    return model, results(model, history)


def results(model: Any, history: Any) -> dict[str, Any]:
    variables = [*model.get_weights(), *(np.asarray(tf.convert_to_tensor(v)) for v in model.optimizer.variables)]
    weights = hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in variables)).hexdigest()
    return {"weights": weights, "history": history.history, "epochs": history.epoch}


def check(strategy, directory, *, at: list[dict[str, int]], extra=lambda: [], resume=None, **options) -> None:
    """Compares a fit that is interrupted several times with a fit without AutoResume."""
    _, expected = fit(strategy, *extra(), **options)
    resume = {"every_steps": 3, **(resume or {})}
    for interruption in at:
        with pytest.raises(InterruptionError):
            fit(strategy, Interrupt(**interruption), *extra(), AutoResume(str(directory), **resume), **options)
    _, found = fit(strategy, *extra(), AutoResume(str(directory), **resume), **options)
    assert found == expected


@pytest.fixture(params=[pytest.param("one_device", marks=pytest.mark.full), "mirrored"])
def strategy(request):
    return tfdist.create_strategy(request.param, **({"devices": 2} if request.param == "mirrored" else {}))


def shuffled(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=3).batch(BATCH)


def repeated(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=3).repeat().batch(BATCH)


@pytest.mark.parametrize("dataset", [pytest.param(None, marks=pytest.mark.full), shuffled])
def test_interruptions_in_the_middle_of_epochs(strategy, dataset, tmp_path):
    check(strategy, tmp_path / "run", at=[{"train": 5}, {"train": 9}, {"train": 1}], dataset=dataset)


@pytest.mark.full
def test_data_without_an_end(strategy, tmp_path):
    options = {"dataset": repeated, "steps_per_epoch": 7}
    check(strategy, tmp_path / "run", at=[{"train": 5}, {"train": 9}], **options)


def test_an_interruption_of_the_validation(strategy, tmp_path):
    x, y = data()
    options = {"validation_data": (x[:32], y[:32])}
    check(strategy, tmp_path / "run", at=[{"test": 2}, {"test": 3}], resume={"every_steps": 1}, **options)


def of_unknown_size(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    return shuffled(x, y).filter(lambda x, y: True)


@pytest.mark.parametrize("at", [7, pytest.param(8, marks=pytest.mark.full)])
def test_data_of_unknown_size(strategy, at, tmp_path):
    # A snapshot after step 7 is at the end of an epoch whose size Keras does not know yet.
    options = {"dataset": of_unknown_size}
    check(strategy, tmp_path / "run", at=[{"train": at}, {"train": 1}], resume={"every_steps": at - 1}, **options)


@pytest.mark.parametrize("use_ema", [pytest.param(False, marks=pytest.mark.full), True])
def test_an_interruption_of_what_ends_the_training(strategy, use_ema, tmp_path):
    # The moving averages replace the weights before on_train_end, EarlyStopping restores the best weights in it.
    def callbacks() -> list[Any]:
        return [keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=9, restore_best_weights=True)]

    options = {"use_ema": use_ema, "extra": callbacks, "resume": {"every_steps": 7}}
    check(strategy, tmp_path / "run", at=[{"end": 1}, {"end": 1}], **options)


class StopAfter(keras.callbacks.Callback):
    """Ends a fit within an epoch."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.made = steps, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.made += 1
        self.model.stop_training = self.made == self.steps


@pytest.mark.parametrize(
    "at", [[{"epoch": 2}], *(pytest.param(at, marks=pytest.mark.full) for at in ([{"end": 1}], [{"test": 3}]))]
)
def test_a_fit_that_a_callback_ends_within_an_epoch_makes_the_end_of_this_epoch(strategy, at, tmp_path):
    x, y = data()
    options = {"validation_data": (x[:32], y[:32]), "extra": lambda: [StopAfter(10)]}
    check(strategy, tmp_path / "run", at=at, resume={"every_steps": 1}, **options)


class Rows(getattr(keras.utils, "PyDataset", keras.utils.Sequence)):
    """Batches of Keras's own kind, whose order fit draws from Python's random numbers."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.rows = x, y

    def __len__(self) -> int:
        return -(-ROWS // BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        return tuple(one[BATCH * index : BATCH * (index + 1)] for one in self.rows)


def drawn_by_a_generator(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    """Returns data of a generator that draws another order in each epoch."""
    draw = np.random.default_rng(1)

    def rows() -> Any:
        for row in draw.permutation(len(x)):
            yield x[row], y[row]

    signature = tuple(tf.TensorSpec(one.shape[1:], one.dtype) for one in (x, y))
    return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(BATCH)


def cached(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    """Returns data that have the order of the first epoch in all epochs."""
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=3).cache().batch(BATCH)


@pytest.mark.parametrize(
    "dataset", [Rows, *(pytest.param(one, marks=pytest.mark.full) for one in (drawn_by_a_generator, cached))]
)
def test_data_whose_epochs_depend_on_the_epochs_before(strategy, dataset, tmp_path):
    check(strategy, tmp_path / "run", at=[{"train": 9}, {"train": 9}], dataset=dataset)


def test_a_training_whose_end_is_in_memory_only_is_finished_on_disk_by_the_next_start(strategy, tmp_path, monkeypatch):
    directory, write = tmp_path / "run", DiskTier.write

    def full(self: DiskTier, step: int, parts: Any, *, finished: bool = False, **options: Any) -> Any:
        if finished:
            raise OSError(errno.ENOSPC, "no space left")
        return write(self, step, parts, finished=finished, **options)

    monkeypatch.setattr(DiskTier, "write", full)
    _, expected = fit(strategy, AutoResume(str(directory), every_steps=3))
    assert folder_of(str(directory), 0).exists()
    monkeypatch.setattr(DiskTier, "write", write)
    fits._ended.clear()
    _, found = fit(strategy, AutoResume(str(directory), every_steps=3))
    assert found == expected
    assert SnapshotFollower(directory).ended() is not None
    assert not folder_of(str(directory), 0).exists()


def test_shared_memory_that_is_full_keeps_the_snapshots_before(tmp_path, monkeypatch, caplog):
    directory, write = tmp_path / "run", MemoryTier.write

    def full(self: MemoryTier, part: Any) -> None:
        if part.step > 3:
            raise OSError(errno.ENOSPC, "no space left")
        write(self, part)

    strategy = tfdist.create_strategy("one_device")
    _, expected = fit(strategy)
    monkeypatch.setattr(MemoryTier, "write", full)
    monkeypatch.setattr(DiskTier, "write", lambda *arguments, **options: None)
    with pytest.raises(InterruptionError):
        fit(strategy, Interrupt(train=6), AutoResume(str(directory), every_steps=1))
    assert caplog.text.count("is not kept in shared memory") == 1
    monkeypatch.undo()
    _, found = fit(strategy, AutoResume(str(directory), every_steps=1))
    assert "goes on from the snapshot of step 3 " in caplog.text
    assert found == expected


@pytest.mark.full
def test_several_steps_for_each_execution(strategy, tmp_path):
    compiled = {"steps_per_execution": 2}
    check(strategy, tmp_path / "run", at=[{"train": 3}, {"train": 4}], compiled=compiled)


@pytest.mark.parametrize(
    "at",
    [
        [{"train": 7}],
        *(pytest.param(at, marks=pytest.mark.full) for at in ([{"train": 8}], [{"train": 14}, {"train": 1}])),
    ],
)
def test_a_learning_rate_that_callbacks_set_at_each_epoch(strategy, at, tmp_path):
    def callbacks() -> list[Any]:
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.7, min_delta=1.0),
        ]

    check(strategy, tmp_path / "run", at=at, extra=callbacks, resume={"every_steps": 7})


@pytest.mark.full
def test_the_rows_of_a_csv_logger(tmp_path):
    strategy, rows = tfdist.create_strategy("one_device"), []
    for name, at in (("expected", []), ("found", [{"train": 9}, {"train": 9}])):
        path = tmp_path / f"{name}.csv"
        check(
            strategy,
            tmp_path / name,
            at=at,
            extra=lambda path=path: [keras.callbacks.CSVLogger(str(path))],
            resume={"every_steps": 2},
        )
        with path.open() as file:
            rows.append(list(csv.DictReader(file)))
    assert rows[0] == rows[1]
    assert len(rows[0]) == EPOCHS


def test_a_second_fit_has_snapshots_of_its_own(strategy, tmp_path):
    def two_fits(interruption: dict[str, int] | None, *, auto: bool) -> dict[str, Any]:
        def callbacks() -> list[Any]:
            return [AutoResume(str(tmp_path / "run"), every_steps=3)] if auto else []

        model, _ = fit(strategy, *callbacks(), epochs=2)
        x, y = data()
        others = [Interrupt(**interruption)] if interruption else []
        history = model.fit(x, y, epochs=3, batch_size=BATCH, verbose=0, callbacks=[*others, *callbacks()])
        return results(model, history)

    expected = two_fits(None, auto=False)
    with pytest.raises(InterruptionError):
        two_fits({"train": 11}, auto=True)
    # A new process begins with the first fit again.
    fits._ended.clear()
    assert two_fits(None, auto=True) == expected


@pytest.mark.full
def test_another_number_of_replicas_reads_the_same_records(tmp_path):
    strategies = [tfdist.create_strategy("mirrored", devices=2), tfdist.create_strategy("one_device")]
    model, _ = fit(strategies[1], depends_on_replicas=False)
    for strategy, at in ((strategies[0], 5), (strategies[1], 9), (strategies[0], 6)):
        callbacks = Interrupt(train=at), AutoResume(str(tmp_path / "run"), every_steps=2)
        with pytest.raises(InterruptionError):
            fit(strategy, *callbacks, depends_on_replicas=False)
    found, results_of_found = fit(
        strategies[1], AutoResume(str(tmp_path / "run"), every_steps=2), depends_on_replicas=False
    )
    for one, other in zip(found.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert len(results_of_found["history"]["loss"]) == EPOCHS


def test_an_order_without_a_seed_is_refused(tmp_path):
    tf.random.set_seed(None)
    strategy = tfdist.create_strategy("one_device")
    x, y = data()
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9).batch(16))
    for unseeded in (tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9).batch(16), dataset):
        with pytest.raises(ValueError, match="received ShuffleDataset without a seed"):
            model.fit(unseeded, steps_per_epoch=7, verbose=0, callbacks=[AutoResume(str(tmp_path / "run"))])


def test_backup_and_restore_beside_it_is_refused(tmp_path):
    other = keras.callbacks.BackupAndRestore(str(tmp_path / "other"))
    with pytest.raises(ValueError, match="expected no BackupAndRestore beside AutoResume"):
        fit(tfdist.create_strategy("one_device"), other, AutoResume(str(tmp_path / "run")))


def test_a_second_auto_resume_is_refused(tmp_path):
    both = [AutoResume(str(tmp_path / name)) for name in ("run", "other")]
    with pytest.raises(ValueError, match="expected one AutoResume in the callbacks of a fit, received several"):
        fit(tfdist.create_strategy("one_device"), *both)


@pytest.mark.parametrize("memory", [True, False])
def test_a_directory_that_another_training_uses_is_refused(memory, tmp_path):
    other = InUse(str(tmp_path))
    other.begin()
    resume = AutoResume(str(tmp_path), memory=memory)
    with pytest.raises(ValueError, match=r"expected no other training in the directory .* that still runs; wait for"):
        fit(tfdist.create_strategy("one_device"), resume)
    other.end()
    fit(tfdist.create_strategy("one_device"), AutoResume(str(tmp_path), memory=memory))
    assert not (tmp_path / NAME).exists()


def test_the_last_snapshot_is_in_memory_while_the_one_before_is_written(tmp_path, monkeypatch):
    # A process that is killed in its grace period loses no step if shared memory has the last one.
    store, keep_in_memory = DiskTier.write, MemoryTier.write
    last, in_memory, seen = EPOCHS * 7, [], []

    def slow(self: DiskTier, step: int, parts: Any, **options: Any) -> Any:
        end = time.monotonic() + 60
        while step < last and last not in in_memory and time.monotonic() < end:
            time.sleep(0.01)
        seen.append((step, last in in_memory))
        return store(self, step, parts, **options)

    def remember(self: MemoryTier, part: Any) -> None:
        keep_in_memory(self, part)
        in_memory.append(part.step)

    monkeypatch.setattr(DiskTier, "write", slow)
    monkeypatch.setattr(MemoryTier, "write", remember)
    fit(tfdist.create_strategy("one_device"), AutoResume(str(tmp_path / "run"), every_steps=3))
    assert seen == [(3, True), (last, True)]


def test_a_first_write_that_costs_much_is_the_last_one_before_the_end(tmp_path, monkeypatch):
    store, steps = DiskTier.write, []

    class Waits(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            # The first snapshot, after ten steps, is on the disk before the second one is due.
            if self.model.optimizer.iterations.numpy() == 15:
                end = time.monotonic() + 60
                while not steps and time.monotonic() < end:
                    time.sleep(0.01)
                time.sleep(0.5)

    def count(self: DiskTier, step: int, parts: Any, **options: Any) -> Any:
        written = store(self, step, parts, **options)
        steps.append(step)
        return written

    monkeypatch.setattr(DiskTier, "write", count)
    measured = property(lambda self: 1000.0 if steps else 0.0, lambda self, seconds: None)
    monkeypatch.setattr(BackgroundWriter, "processor_seconds", measured, raising=False)
    fit(tfdist.create_strategy("one_device"), Waits(), AutoResume(str(tmp_path / "run")), epochs=10)
    assert steps == [10, 70]


@pytest.mark.full
def test_the_callback_chooses_its_intervals_by_their_cost(strategy, tmp_path, caplog):
    check(strategy, tmp_path / "run", at=[{"train": 12}], resume={"every_steps": None})
    assert "a snapshot every" in caplog.text


def test_a_model_that_is_built_in_its_first_step(strategy, tmp_path):
    def train(*callbacks: Any) -> dict[str, Any]:
        keras.utils.set_random_seed(5)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.01), "mse")
        x, y = data()
        return results(model, model.fit(x, y, epochs=2, batch_size=BATCH, verbose=0, callbacks=list(callbacks)))

    expected, directory = train(), str(tmp_path / "run")
    with pytest.raises(InterruptionError):
        train(Interrupt(train=9), AutoResume(directory, every_steps=3))
    assert train(AutoResume(directory, every_steps=3)) == expected
    fits._ended.clear()
    if keras_in_use().is_keras3:
        assert train(AutoResume(directory, every_steps=3)) == expected
    else:
        with pytest.raises(ValueError, match="expected a model with variables, whose training"):
            train(AutoResume(directory, every_steps=3))


def test_a_model_that_runs_eagerly(tmp_path):
    strategy, options = tfdist.create_strategy("one_device"), {"compiled": {"run_eagerly": True}}
    if keras_in_use().is_keras3:
        check(strategy, tmp_path / "run", at=[{"train": 5}, {"train": 9}], **options)
    else:
        # Keras 2 makes variables in the first step, which cannot be traced before it is executed.
        with pytest.raises(ValueError, match="expected variables for"):
            check(strategy, tmp_path / "run", at=[{"train": 5}], **options)
