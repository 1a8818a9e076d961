"""The staleness of a model with several optimizers, and of fits with a CallbackList of the caller's own."""

from __future__ import annotations

import types
from typing import Any

import pytest
import tensorflow as tf

from tfdist.averaging import StalenessCounts, staleness_of
from tfdist.averaging.versioned_updates import VersionedUpdates
from tfdist.keras_compat.parameter_server.staleness_logs import _with_callback

keras = tf.keras
pytestmark = pytest.mark.usefixtures("four_cpus")
NOTHING = StalenessCounts(updates=0, applied=0, dropped=0, waiting=0, histogram=(0, 0))


class Updates:
    """Remembers for which optimizers the counts were asked."""

    def __init__(self) -> None:
        self.asked: Any = None

    def counts(self, optimizers: Any = None) -> StalenessCounts:
        self.asked = optimizers
        return NOTHING


class Gan(keras.Model):
    """A model in the manner of Keras's examples, whose own `optimizer` trains nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.compile()
        self.d_optimizer, self.g_optimizer = keras.optimizers.SGD(), keras.optimizers.Adam()


def test_a_model_has_the_counts_of_all_its_optimizers(monkeypatch: Any) -> None:
    updates, model = Updates(), Gan()
    monkeypatch.setattr(VersionedUpdates, "of", lambda optimizer: updates if optimizer is model.d_optimizer else None)
    assert staleness_of(model) is NOTHING
    assert all(any(one is asked for asked in updates.asked) for one in (model.d_optimizer, model.g_optimizer))


def test_a_callback_list_of_the_caller_gets_one_callback_with_its_model_for_all_fits() -> None:
    updates, given = Updates(), []
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = keras.callbacks.CallbackList([], model=model)
    trained = types.SimpleNamespace(
        distribute_strategy=types.SimpleNamespace(tfdist_updates=updates), optimizer=model.optimizer
    )

    def stock(self: Any, callbacks: Any = None) -> None:
        given.append(callbacks)

    fit = _with_callback(stock)
    fit(trained, callbacks=callbacks)
    fit(trained, callbacks=callbacks)
    assert given == [callbacks, callbacks]
    (own,) = [one for one in callbacks.callbacks if type(one).__name__ == "StalenessLogs"]
    own.on_epoch_begin(0)
    assert set(map(id, updates.asked)) == {id(model.optimizer)}
