"""Losses that layers add and that train_step computes itself."""

from __future__ import annotations

from tests.conformance.case import case


@case("add_loss alone, no compiled loss", floatx="float64")
def add_loss_alone(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit, keras, network, tf

    class Endpoint(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(tf.reduce_mean(tf.square(inputs - 1)))
            return inputs

    data = batches(UNEVEN).map(lambda x, y: x)
    return fit(compiled(run, lambda: network(hidden=[Endpoint()]), metrics=(), loss=None), data)
