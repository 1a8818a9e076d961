"""A program that makes its strategy with tf.distribute, and knows nothing of tfdist: python program.py NAME FOLDER.

It trains in float64, clips gradients, and its last batch is smaller than the others; stock Keras 3 computes other
numbers on several replicas, and fails on several workers.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf


def two_cpus():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return ["CPU:0", "CPU:1"]


def parameter_server():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        server.join()
    return tf.distribute.ParameterServerStrategy(resolver)


def experimental_multi_worker():
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    return tf.distribute.experimental.MultiWorkerMirroredStrategy(communication=ring)


def resolved_multi_worker():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=120.0)
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver, communication_options=options)


class OwnStrategy(tf.distribute.MirroredStrategy):
    """A subclass, as libraries make them."""

    def __init__(self, count):
        super().__init__(devices=two_cpus()[:count])
        self.count = count


STRATEGIES = {
    "none": tf.distribute.get_strategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
    "mirrored": lambda: tf.distribute.MirroredStrategy(two_cpus()),
    "subclass": lambda: OwnStrategy(2),
    "central_storage": lambda: tf.distribute.experimental.CentralStorageStrategy(two_cpus(), parameter_device="CPU:0"),
    "multi_worker": lambda: tf.distribute.MultiWorkerMirroredStrategy(),
    "experimental_multi_worker": experimental_multi_worker,
    "resolved_multi_worker": resolved_multi_worker,
    "parameter_server": parameter_server,
}


def main(name, folder):
    tf.keras.backend.set_floatx("float64")
    strategy = STRATEGIES[name]()
    tf.keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(70, 5)), rng.normal(size=(70, 1))
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((5,)),
                tf.keras.layers.Dense(8, activation="tanh"),
                tf.keras.layers.Dense(1),
            ]
        )
        model.compile(tf.keras.optimizers.Adam(0.01, clipnorm=0.5), "mse", metrics=["mae"])
    steps = {"steps_per_epoch": 5} if name == "parameter_server" else {}
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    history = model.fit(dataset, epochs=3, verbose=0, **steps).history
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {"type": "alone", "index": 0})
    result = {"weights": [weight.tolist() for weight in model.get_weights()], "history": history}
    with open(os.path.join(folder, f"{name}-{task['type']}-{task['index']}.json"), "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
