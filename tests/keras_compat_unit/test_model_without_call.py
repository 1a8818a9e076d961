"""A model with a train_step and without `call` is trained under a strategy, as it is without a strategy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.keras_compat.data.model_without_call import refuse_unbuilt_layers
from tfdist.keras_compat.version import keras, keras_in_use


def model_of(network):
    class Own(keras().Model):
        def __init__(self):
            super().__init__()
            self.network = network

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.network(x) - y))
            variables = self.network.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    return Own()


@pytest.mark.parametrize("name", ["one_device", "mirrored"])
def test_a_model_without_call_is_trained(name):
    strategy = create_strategy(name)
    layers = keras().layers
    with strategy.scope():
        model = model_of(keras().Sequential([layers.Input((2,)), layers.Dense(1, kernel_initializer="zeros")]))
        model.compile(keras().optimizers.SGD(0.5))
    x, y = np.ones([4, 2], "float32"), np.ones([4, 1], "float32")
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(4), verbose=0)
    # The gradient of (k1 + k2 + b - 1)^2 at 0 is -2 for each weight.
    np.testing.assert_allclose(model.network.get_weights()[0], [[1.0], [1.0]], rtol=1e-6)


def test_a_layer_without_variables_is_named():
    if not keras_in_use().is_keras3:
        return
    model = model_of(keras().Sequential([keras().layers.Dense(1, name="late")]))
    with pytest.raises(ValueError, match=r"^expected the layers of Own, which has no call method, .* received late "):
        refuse_unbuilt_layers(model)
    model.network.build((None, 2))
    refuse_unbuilt_layers(model)
