"""A training ends after a number of steps, or when the evaluator asks for it, and not before."""

from __future__ import annotations

import numpy as np
import pytest

from tfdist.checkpoint.following import SnapshotFollower
from tfdist.keras_compat.version import keras
from tfdist.train.callbacks import StopIfNotFinite, TrainingNotFiniteError
from tfdist.train.learning_rate import KeepLearningRate
from tfdist.train.profile import ProfileSteps
from tfdist.train.resuming import CheckedAutoResume
from tfdist.train.stopping import StopAfterSteps, StopRequest, StopWhenAsked

STEPS_PER_EPOCH = 4


def fit(*callbacks, epochs=5, initial_epoch=0):
    layers = keras().layers
    model = keras().Sequential([layers.Input((2,)), layers.Dense(1, name="last")])
    model.compile("sgd", "mse")
    rows = STEPS_PER_EPOCH * 2
    return model.fit(
        np.ones((rows, 2)),
        np.ones((rows, 1)),
        2,
        epochs=epochs,
        initial_epoch=initial_epoch,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )


def iterations(history):
    return int(history.model.optimizer.iterations.numpy())


@pytest.mark.parametrize(("steps", "made"), [(1, 1), (4, 4), (10, 10), (11, 11), (100, 20)])
def test_the_last_epoch_may_be_shorter(steps, made):
    assert iterations(fit(StopAfterSteps(steps, steps_per_epoch=STEPS_PER_EPOCH))) == made


def test_steps_of_earlier_epochs_count_after_an_interruption():
    assert iterations(fit(StopAfterSteps(10, steps_per_epoch=STEPS_PER_EPOCH), initial_epoch=2)) == 2


@pytest.mark.parametrize(("run", "epochs"), [("this", 1), ("another", 5)])
def test_only_a_request_for_this_run_ends_the_training(run, epochs, tmp_path, caplog):
    StopRequest(run=run, why="3 evaluations without a better loss").write(str(tmp_path))
    with caplog.at_level("INFO", logger="tfdist"):
        history = fit(StopWhenAsked(str(tmp_path), run="this"))
    assert len(history.epoch) == epochs
    said = "the training ends after epoch 1, as the evaluator asks: 3 evaluations without a better loss"
    assert (said in caplog.text) == (run == "this")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run": "this"}'])
def test_a_file_that_is_no_request_is_ignored(content, tmp_path):
    (tmp_path / "stop.json").write_text(content)
    assert len(fit(StopWhenAsked(str(tmp_path), run="this"), epochs=2).epoch) == 2


@pytest.mark.parametrize("last", [7, 100])
def test_a_profile_is_written_even_if_the_training_ends_within_it(last, tmp_path):
    profile = ProfileSteps(5, last, steps_per_epoch=STEPS_PER_EPOCH, directory=str(tmp_path))
    fit(profile, epochs=2)
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 1


class BreakWeights(keras().callbacks.Callback):
    def __init__(self, epoch, batch):
        super().__init__()
        self.at, self.epoch = (epoch, batch), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            self.model.get_layer("last").kernel.assign([[np.nan], [1.0]])


def test_no_snapshot_has_weights_that_are_not_finite(tmp_path):
    guard = StopIfNotFinite()
    resume = CheckedAutoResume(
        str(tmp_path / "run"), guard=guard, every_steps=1, memory=False, preemption_signals=(), keep=10
    )
    with pytest.raises(TrainingNotFiniteError, match=r"nan or inf in .*last/kernel.* after step 3 of epoch 2;"):
        fit(guard, BreakWeights(1, 2), resume)
    # The thread that writes a snapshot may be behind.
    follower = SnapshotFollower(tmp_path / "run")
    found = follower.next()
    assert found is None or all(np.isfinite(value).all() for value in found.part.values.values())


class Interrupt(keras().callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise InterruptedError


@pytest.mark.parametrize("rate", [0.01, 0.002])
def test_a_training_goes_on_with_the_learning_rate_of_its_flags(rate, tmp_path):
    options = {"guard": None, "every_steps": 1, "memory": False, "preemption_signals": ()}
    with pytest.raises(InterruptedError):
        fit(Interrupt(), KeepLearningRate(0.01), CheckedAutoResume(str(tmp_path / "run"), **options))
    again = fit(KeepLearningRate(rate), CheckedAutoResume(str(tmp_path / "run"), **options))
    assert iterations(again) == 5 * STEPS_PER_EPOCH
    assert float(np.asarray(again.model.optimizer.learning_rate)) == np.float32(rate)
