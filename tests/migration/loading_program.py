"""Loads weights before it trains, as Horovod programs do on rank 0: python program.py none|chief|all."""

import json
import sys

import numpy as np
import tensorflow as tf

import tfdist
from tfdist.workers import is_chief

strategy = tfdist.create_strategy("one_device" if sys.argv[1] == "none" else "auto")
tf.keras.backend.set_floatx("float64")
tf.keras.utils.set_random_seed(1)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
if sys.argv[1] != "chief" or is_chief(strategy):
    model.set_weights([np.full(weight.shape, 0.5) for weight in model.get_weights()])
x = np.random.default_rng(0).normal(size=(64, 4))
model.fit(x, x.sum(axis=1, keepdims=True), batch_size=16, epochs=2, verbose=0)
print("WEIGHTS", json.dumps(np.concatenate([weight.ravel() for weight in model.get_weights()]).tolist()), flush=True)
