"""Trains with LocalSGD and AutoResume, which is made before or after LocalSGD: FOLDER DEVICES OPTIONS before|after.

The options of LocalSGD are JSON. Prints the weights that are seen after the training, and those of each replica.
"""

from __future__ import annotations

import json
import sys

import tensorflow as tf

import tfdist
from tfdist.averaging import LocalSGD
from tfdist.checkpoint import AutoResume

keras = tf.keras


def main() -> None:
    folder, devices, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    is_before = sys.argv[4] == "before"
    resume = AutoResume(folder) if is_before else None
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * devices
    )
    strategy = tfdist.create_strategy("mirrored", devices=devices)
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
        model.compile(LocalSGD(keras.optimizers.SGD(0.05), **options), "mse")
    x = tf.random.stateless_normal((96, 8), (1, 2))
    model.fit(
        x,
        tf.reduce_sum(x, 1, keepdims=True),
        batch_size=16,
        epochs=1,
        verbose=0,
        callbacks=[resume or AutoResume(folder)],
    )
    print("SEEN", json.dumps([one.tolist() for one in model.get_weights()]))
    hook = model.optimizer._tfdist_hook
    with hook.own():
        each = [strategy.experimental_local_results(one) for one in hook.meeting.weights]
        print("OWN", json.dumps([value.numpy().tolist() for one in each for value in one]))


if __name__ == "__main__":
    main()
