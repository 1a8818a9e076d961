"""A program whose train_step divides by its global batch, as TensorFlow's tutorial does: python program.py NAME RULE.

NAME is none or mirrored. RULE is stock, or the option `loss` of tfdist.adopt.
"""

import json
import sys

import numpy as np
import tensorflow as tf

import tfdist

NAME, RULE = sys.argv[1:]
if RULE != "stock":
    tfdist.adopt(loss=RULE)

tf.keras.backend.set_floatx("float64")
if NAME == "none":
    strategy = tf.distribute.get_strategy()
else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
GLOBAL_BATCH_SIZE = 16 // strategy.num_replicas_in_sync * strategy.num_replicas_in_sync
tf.keras.utils.set_random_seed(1)


class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = tf.reduce_sum(tf.square(y - self(x)), axis=1)
            loss = tf.reduce_sum(losses) * (1.0 / GLOBAL_BATCH_SIZE)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


with strategy.scope():
    model = Model()
    model.compile(tf.keras.optimizers.SGD(0.1))
x = np.random.default_rng(0).normal(size=(64, 4))
model.fit(tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(16), epochs=2, verbose=0)
print("WEIGHTS", json.dumps(np.concatenate([weight.ravel() for weight in model.get_weights()]).tolist()))
