"""Programs of canaries whose models have a train_step of their own, for Keras 3."""

from __future__ import annotations

MODEL_WITHOUT_CALL = """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.layer.build((None, 4))

    def train_step(self, data):
        return {"size": tf.reduce_mean(self.layer(data[0]))}


with mirrored().scope():
    model = Own()
    model.compile("sgd")
outcome(lambda: bool(model.fit(data(), verbose=0)))
"""

CALL_OF_SOMETHING_ELSE = """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)

    def call(self, inputs):
        one, two = inputs
        return self.layer(one) + self.layer(two)

    def train_step(self, data):
        return {"size": tf.reduce_mean(self([data[0], data[0]]))}


with mirrored().scope():
    model = Own()
    model.compile("sgd")
outcome(lambda: bool(model.fit(data(), verbose=0)))
"""
