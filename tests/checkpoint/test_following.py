"""An evaluator gets each complete snapshot once, whatever the training does to its directory meanwhile."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import tfdist
from tfdist.checkpoint import disk
from tfdist.checkpoint.auto_resume import AutoResume
from tfdist.checkpoint.components import name_of, read_values
from tfdist.checkpoint.disk import DiskTier
from tfdist.checkpoint.following import SnapshotFollower, restore_model
from tfdist.checkpoint.part import Part, write_part
from tfdist.keras_compat.resume.variables import training_variables
from tfdist.keras_compat.version import keras

VALUE = "model/0/kernel"


@pytest.fixture(autouse=True)
def _tensorflow(four_cpus, no_surroundings):
    """Runs every test with four logical CPUs and without the environment variables of a cluster."""


@pytest.fixture
def directory(tmp_path):
    begin_run(tmp_path / "snapshots", "first")
    return tmp_path / "snapshots"


def begin_run(directory: Path, name: str) -> None:
    directory.mkdir()
    (directory / ".run").write_text(name)


def data_of(step: int, name: str = VALUE, **notes) -> memoryview:
    part = Part(step=step, values={name: np.full([3], step, "float32")}, notes={"replicas": 1, **notes})
    buffer = bytearray(4096)
    return memoryview(buffer)[: write_part(part, memoryview(buffer))]


def write(directory: Path, *steps: int, keep: int = 2, **options) -> Path:
    return [DiskTier(directory, keep=keep).write(s, {"worker-0": data_of(s)}, model="m", **options) for s in steps][-1]


def damage(folder: Path) -> None:
    data = bytearray((folder / "worker-0").read_bytes())
    data[70] ^= 1
    (folder / "worker-0").write_bytes(data)


def test_each_snapshot_is_given_once_and_with_its_values(directory):
    follower = SnapshotFollower(directory)
    for step in (5, 10):
        write(directory, step)
        found = follower.next()
        assert (found.run, found.step, found.finished, found.left_out) == ("first", step, False, ())
        np.testing.assert_array_equal(found.part.values[VALUE], np.full([3], step, "float32"))
        assert follower.next() is None


def test_a_follower_that_lags_gets_the_newest_snapshot_and_hears_what_is_left_out(directory):
    follower = SnapshotFollower(directory)
    write(directory, 5, 10, 15, keep=3)
    found = follower.next()
    assert (found.step, found.left_out) == (15, (5, 10))
    assert follower.next() is None


def test_there_may_be_no_directory_yet(tmp_path):
    follower = SnapshotFollower(tmp_path / "later")
    assert follower.next() is None
    assert follower.ended() is None
    assert (follower.run, follower.steps()) == ("", [])
    begin_run(tmp_path / "later", "a")
    write(tmp_path / "later", 5)
    assert follower.next().step == 5


def test_a_snapshot_that_is_removed_while_it_is_read_is_left_for_the_newest_one(directory, monkeypatch, caplog):
    follower, stock, removed = SnapshotFollower(directory), disk.Stored.part, []
    write(directory, 5, keep=1)

    def remove_first(self, name):
        if not removed:
            removed.append(self.folder)
            write(directory, 10, keep=1)
        return stock(self, name)

    monkeypatch.setattr(disk.Stored, "part", remove_first)
    with caplog.at_level(logging.WARNING, logger="tfdist"):
        found = follower.next() or follower.next()
    assert not removed[0].exists()
    assert found.step == 10
    assert caplog.text == ""


def test_a_damaged_snapshot_is_not_given_and_the_log_says_so_once(directory, caplog):
    follower = SnapshotFollower(directory)
    write(directory, 5)
    damaged = write(directory, 10)
    damage(damaged)
    with caplog.at_level(logging.WARNING, logger="tfdist"):
        assert follower.next().step == 5
        assert follower.next() is None
    assert caplog.text.count(f"{damaged} is not used: worker-0 has another checksum") == 1
    shutil.rmtree(damaged)
    # The training goes back to its snapshot of step 5, and comes to step 10 again.
    for step in (8, 10):
        assert write(directory, step).name in ("snapshot-0000000008-0", damaged.name)
        assert follower.next().step == step


def test_a_new_follower_does_not_give_what_an_earlier_one_has_given(directory):
    write(directory, 5, 10)
    follower = SnapshotFollower(directory, seen=[("first", 5), ("first", 10)])
    assert follower.next() is None
    write(directory, 15)
    assert follower.next().step == 15


def test_another_run_in_the_directory_begins_anew(directory):
    write(directory, 5)
    follower = SnapshotFollower(directory, seen=[("first", 5)])
    assert follower.next() is None
    shutil.rmtree(directory)
    begin_run(directory, "second")
    write(directory, 5)
    found = follower.next()
    assert (found.run, found.step) == ("second", 5)


def test_the_end_of_a_training_is_known(directory):
    follower = SnapshotFollower(directory)
    write(directory, 5)
    assert follower.ended() is None
    write(directory, 10, finished=True)
    assert follower.ended().step == 10
    # The same training goes on for more epochs.
    write(directory, 15)
    assert follower.ended() is None


def model_of(width: int = 3):
    layers = keras().layers
    strategy = tfdist.create_strategy("one_device")
    with strategy.scope():
        model = keras().Sequential([layers.Input((4,)), layers.Dense(width), layers.BatchNormalization()])
        model.compile(keras().optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def test_statistics_of_several_workers_are_averaged(directory):
    source, target = model_of(), model_of()
    values = read_values(training_variables(source), first_replica=0)
    mean = next(name for name in values if name.startswith("model/") and values[name].shape == (3,) and "mean" in name)
    del values[mean]
    tier, data = DiskTier(directory, keep=1), {}
    for worker, number in enumerate((1.0, 4.0)):
        own = {**(values if worker == 0 else {}), name_of(mean, worker): np.full([3], number, "float32")}
        buffer = bytearray(100_000)
        size = write_part(Part(step=5, values=own, notes={"replicas": 2}), memoryview(buffer))
        data[f"worker-{worker}"] = memoryview(buffer)[:size]
    tier.write(5, data, model="m")
    restore_model(target, SnapshotFollower(directory).next().part)
    np.testing.assert_array_equal(target.layers[-1].moving_mean, np.full([3], 2.5))
    np.testing.assert_array_equal(target.layers[0].get_weights()[0], source.layers[0].get_weights()[0])


def test_a_snapshot_of_another_model_is_refused(directory):
    values = read_values(training_variables(model_of(5)), first_replica=0)
    part = Part(step=5, values=values, notes={"replicas": 1})
    with pytest.raises(ValueError, match=re.escape("expected a snapshot of this model, received one that differs in ")):
        restore_model(model_of(3), part)


def test_the_newest_snapshot_of_a_fit_is_the_model_and_its_optimizer(directory):
    strategy = tfdist.create_strategy("mirrored", devices=2)
    keras().utils.set_random_seed(1)
    with strategy.scope():
        layers = keras().layers
        model = keras().Sequential([layers.Input((4,)), layers.Dense(3), layers.BatchNormalization()])
        model.compile(keras().optimizers.SGD(0.1, momentum=0.9), "mse")
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    resume = AutoResume(str(directory), every_steps=2, memory=False, preemption_signals=())
    model.fit(x, x[:, :3], batch_size=8, epochs=3, verbose=0, callbacks=[resume])
    follower, target = SnapshotFollower(directory), model_of()
    found = follower.next()
    assert (found.step, found.finished, follower.ended().notes["epoch"]) == (6, True, 3)
    restore_model(target, found.part)
    for mine, expected in zip(target.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, expected)
    assert int(target.optimizer.iterations.numpy()) == 6
    own, former = (
        {name: np.asarray(one) for name, one in training_variables(m).items() if name.startswith("optimizer/")}
        for m in (target, model)
    )
    # The number of steps, and at least the momentum of four variables.
    assert len(own) >= 5
    for name, value in former.items():
        np.testing.assert_array_equal(own[name], value)
