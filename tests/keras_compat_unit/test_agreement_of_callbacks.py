"""Callbacks that change the training have to be those of the other workers; a callback that writes may be alone."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from tfdist.averaging import LocalSGD
from tfdist.keras_compat.agreement.describe import describe
from tfdist.keras_compat.agreement.training import Training, disagreement

callbacks = tf.keras.callbacks
START = "expected the same training on all workers, received: "


def described(given, *, call="fit", model=None):
    if model is None:
        model = compiled(tf.keras.optimizers.SGD())
    return Training.from_json(describe(model, call, {"x": tf.ones([4, 2]), "callbacks": given}).to_json())


def compiled(optimizer):
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def message(first, second, **options):
    return disagreement(["worker 0", "worker 1"], [described(first, **options), described(second, **options)])


class StopSooner(callbacks.EarlyStopping):
    """A class of a user."""


class Prints(callbacks.Callback):
    """A class of a user that changes nothing."""


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ([callbacks.EarlyStopping()], None, "worker 1 has no EarlyStopping, worker 0 has EarlyStopping."),
        ([StopSooner()], [], "worker 1 has no EarlyStopping, worker 0 has EarlyStopping."),
        (
            callbacks.LearningRateScheduler(lambda epoch: 0.1),
            None,
            "worker 1 has no LearningRateScheduler, worker 0 has LearningRateScheduler.",
        ),
        (
            callbacks.CallbackList([callbacks.ReduceLROnPlateau()]),
            [Prints()],
            "worker 1 has no ReduceLROnPlateau, worker 0 has ReduceLROnPlateau.",
        ),
        (
            [],
            [callbacks.TerminateOnNaN()],
            "worker 1 has TerminateOnNaN, worker 0 has no TerminateOnNaN.",
        ),
        (
            [callbacks.EarlyStopping("loss"), callbacks.EarlyStopping("val_loss")],
            [callbacks.EarlyStopping("loss")],
            "worker 1 has EarlyStopping, worker 0 has 2 of EarlyStopping.",
        ),
        (
            [callbacks.ReduceLROnPlateau(factor=0.5), callbacks.EarlyStopping(patience=3)],
            [callbacks.EarlyStopping(patience=4), callbacks.ReduceLROnPlateau(factor=0.5)],
            "worker 1 has EarlyStopping(patience=4), worker 0 has EarlyStopping(patience=3).",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_callback_that_changes_the_training_on_some_workers_only_is_named(first, second, difference):
    assert message(first, second) == START + difference


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (None, []),
        (
            [
                callbacks.ModelCheckpoint("model.weights.h5", save_weights_only=True),
                callbacks.TensorBoard("logs"),
                callbacks.CSVLogger("log.csv"),
                callbacks.LambdaCallback(),
                callbacks.BackupAndRestore("backup"),
                callbacks.RemoteMonitor(),
                Prints(),
            ],
            None,
        ),
        ([callbacks.EarlyStopping(verbose=1)], [callbacks.EarlyStopping(verbose=0, restore_best_weights=True)]),
        (
            [callbacks.EarlyStopping("loss"), callbacks.EarlyStopping("val_loss")],
            [callbacks.EarlyStopping("val_loss"), callbacks.EarlyStopping("loss")],
        ),
        ([callbacks.LearningRateScheduler(abs)], [callbacks.LearningRateScheduler(lambda epoch: 0.1)]),
    ],
    ids=["none", "callbacks that write", "what is shown and restored", "another order", "functions"],
)
def test_other_callbacks_and_what_they_show_may_differ(first, second):
    assert message(first, second) == ""


def test_a_callback_that_has_been_used_before_is_the_same():
    used = callbacks.EarlyStopping("loss", min_delta=0.5, patience=9)
    model = compiled(tf.keras.optimizers.SGD())
    model.fit(tf.ones([4, 2]), tf.ones([4, 1]), epochs=2, verbose=0, callbacks=[used])
    assert message([used], [callbacks.EarlyStopping("loss", min_delta=0.5, patience=9)]) == ""


def test_callbacks_of_an_evaluation_may_differ():
    assert message([callbacks.EarlyStopping()], None, call="evaluate") == ""


def test_one_worker_may_end_a_training_in_which_the_workers_end_together():
    model = compiled(LocalSGD(tf.keras.optimizers.SGD(), every=4))
    assert message([callbacks.EarlyStopping(), callbacks.TerminateOnNaN()], None, model=model) == ""
    assert "no ReduceLROnPlateau" in message([callbacks.ReduceLROnPlateau()], None, model=model)


@pytest.mark.skipif(not hasattr(callbacks, "SwapEMAWeights"), reason="Keras 2 has no SwapEMAWeights")
def test_weights_that_one_worker_replaces_by_their_averages_are_named():
    assert "worker 1 has no SwapEMAWeights" in message([callbacks.SwapEMAWeights()], None)


def test_the_description_is_plain():
    found = described([callbacks.EarlyStopping(baseline=None, min_delta=1)])
    assert json.loads(json.dumps(found.callbacks)) == found.callbacks
    assert found.callbacks["EarlyStopping"][0]["min_delta"] == 1
