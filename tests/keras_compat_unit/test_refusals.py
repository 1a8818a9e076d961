"""Options that cannot be honoured are refused before the first step."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tfdist import create_strategy
from tfdist.keras_compat.version import keras, keras_in_use

X, Y = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")


def compiled(strategy, optimizer="sgd", **options):
    with strategy.scope():
        model = keras().Sequential([keras().layers.Input((4,)), keras().layers.Dense(1)])
        model.compile(optimizer, "mse", **options)
    return model


@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_jit_compile_is_refused_on_several_replicas(name, method):
    model = compiled(create_strategy(name, devices=2), jit_compile=True)
    before = model.get_weights()
    with pytest.raises(
        ValueError, match=r"^expected compile\(jit_compile=False\) on several replicas, received True; leave jit"
    ):
        getattr(model, method)(X, Y, batch_size=4, verbose=0)
    np.testing.assert_array_equal(before[0], model.get_weights()[0])


def test_jit_compile_on_one_replica_is_honoured():
    model = compiled(create_strategy("mirrored", devices=1), jit_compile=True)
    assert model.fit(X, Y, batch_size=4, verbose=0).history["loss"]


@pytest.mark.parametrize("scaled", [False, True], ids=["bare", "loss scale"])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps"),
        ({"use_ema": True, "ema_overwrite_frequency": 2}, "ema_overwrite_frequency"),
    ],
    ids=["accumulation", "ema"],
)
def test_options_of_the_optimizer_are_refused_on_parameter_servers(options, named, scaled):
    from tfdist.keras_compat.parameter_server.fit_keras3 import refuse_optimizer_options

    optimizer = SimpleNamespace(**options)
    optimizer = SimpleNamespace(inner_optimizer=optimizer) if scaled else optimizer
    with pytest.raises(ValueError, match=rf"^expected an optimizer without {named} for the strategy parameter_server"):
        refuse_optimizer_options(optimizer)


def test_an_average_of_weights_that_is_not_written_back_is_accepted():
    from tfdist.keras_compat.parameter_server.fit_keras3 import refuse_optimizer_options

    refuse_optimizer_options(SimpleNamespace(use_ema=True, ema_overwrite_frequency=None))
    refuse_optimizer_options(SimpleNamespace(use_ema=False, ema_overwrite_frequency=3))
    refuse_optimizer_options(keras().optimizers.Adam())


def test_a_stateful_layer_is_refused_where_replicas_share_its_state():
    if not keras_in_use().is_keras3:
        return
    with (
        create_strategy("central_storage", devices=2).scope(),
        pytest.raises(
            ValueError, match=r"^expected recurrent layers with stateful=False .* received own with stateful="
        ),
    ):
        keras().layers.LSTM(2, stateful=True, name="own").build((2, 3, 4))
    with create_strategy("mirrored", devices=2).scope():
        keras().layers.LSTM(2, stateful=True).build((2, 3, 4))
