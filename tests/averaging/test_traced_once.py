"""The variables of an optimizer with local steps are made when it is built, so that its first step is traced once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.averaging import DPSGD, ChocoSGD, LocalSGD, averaged
from tfdist.keras_compat import keras_in_use

keras = tf.keras
pytestmark = [
    pytest.mark.usefixtures("four_cpus", "no_surroundings"),
    pytest.mark.skipif(not keras_in_use().is_keras3, reason="Keras 2 makes the slots in the first step"),
]

WRAPPED = {
    "bare": lambda optimizer: optimizer,
    "LocalSGD": lambda optimizer: LocalSGD(optimizer, every=2, outer="nesterov"),
    "DPSGD": DPSGD,
    "ChocoSGD": lambda optimizer: ChocoSGD(optimizer, consensus_rate=0.3),
}


@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
def test_fit_calls_the_loss_once_for_each_replica(strategy: Any, wrapped: Callable[[Any], Any]) -> None:
    calls = []

    def loss(y_true: Any, y_pred: Any) -> Any:
        # Keras also calls it outside of the replicas, with symbolic tensors.
        if not tf.distribute.in_cross_replica_context():
            calls.append(y_pred)
        return tf.reduce_mean((y_true - y_pred) ** 2, axis=-1)

    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(wrapped(keras.optimizers.Adam(0.1)), loss)
    model.fit(np.ones((32, 3)), np.ones((32, 1)), batch_size=8, epochs=2, verbose=0)
    assert len(calls) == strategy.num_replicas_in_sync


@pytest.mark.parametrize("start_step", [0, 3])
def test_an_optimizer_that_was_built_before_a_loop_trains_some_of_its_variables(strategy: Any, start_step: int) -> None:
    """The variables of the step have other places than those of the optimizer, and one has sparse gradients."""

    def trained(*, is_built: bool) -> list[np.ndarray]:
        with strategy.scope():
            keras.utils.set_random_seed(1)
            table = keras.layers.Embedding(5, 2)
            layers = [keras.layers.Dense(3), table, keras.layers.Dense(1)]
            layers[0].build((None, 4))
            table.build((None,))
            layers[2].build((None, 2))
            variables = [variable for layer in layers for variable in layer.trainable_variables]
            local = LocalSGD(keras.optimizers.SGD(0.1, momentum=0.5), every=2, start_step=start_step)
            if is_built:
                local.build(variables)

        def step(rows: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((layers[2](table(rows)) - 1.0) ** 2) / 8.0
            chosen = [*layers[2].trainable_variables, *table.trainable_variables]
            local.apply_gradients(zip(tape.gradient(loss, chosen), chosen, strict=True))

        values = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([context.replica_id_in_sync_group, 1])
        )
        run = tf.function(lambda: strategy.run(step, args=(values,)))
        for _ in range(7):
            run()
        with averaged(local):
            return [variable.numpy() for variable in variables]

    for one, other in zip(trained(is_built=True), trained(is_built=False), strict=True):
        np.testing.assert_array_equal(one, other)
