"""Python runs this file at the start of a public program: it brings the data, float64 and a seed, and reports each fit.

The program itself stays as it is. Environment variables say what is asked for:

PUBLIC_ROWS: rows of training data that stand for MNIST, which cannot be downloaded everywhere.
PUBLIC_CPUS: logical CPUs, for programs that take all devices.
PUBLIC_ONE_DEVICE: constructors of strategies return the default strategy, which is one device.
"""

import json
import os

import wrapt

KERAS = "tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else "keras"


def mnist(*_args, **_options):
    import numpy as np
    import tensorflow as tf

    # Programs of several workers read data before they make their models: equal data and weights on all workers.
    tf.keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)

    def part(rows):
        return rng.integers(0, 256, (rows, 28, 28)).astype("uint8"), rng.integers(0, 10, (rows,)).astype("uint8")

    return part(int(os.environ["PUBLIC_ROWS"])), part(200)


def report_fits(trainer):
    stock = trainer.fit

    def fit(self, *args, **options):
        history = stock(self, *args, **options)
        import numpy as np

        weights = self.get_weights()
        # One number that changes with each weight, and with their order.
        mixed = [float((weight * np.cos(np.arange(weight.size)).reshape(weight.shape)).sum()) for weight in weights]
        found = {"dtype": str(weights[0].dtype), "weights": mixed}
        found["history"] = {name: [float(value) for value in values] for name, values in history.history.items()}
        print("PUBLIC", json.dumps(found), flush=True)
        return history

    trainer.fit = fit


def prepare_keras(keras):
    import numpy as np

    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(1)
    np.random.seed(1)


def prepare_tensorflow(tf):
    if "PUBLIC_CPUS" in os.environ:
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * int(os.environ["PUBLIC_CPUS"])
        tf.config.set_logical_device_configuration(cpu, devices)
    if "PUBLIC_ONE_DEVICE" in os.environ:

        class OneDevice:
            def __new__(cls, *_args, **_options):
                strategy = tf.distribute.get_strategy()
                type(strategy).cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
                return strategy

        tf.distribute.MultiWorkerMirroredStrategy = tf.distribute.MirroredStrategy = OneDevice


for dataset in ("keras.src.datasets.mnist", "tf_keras.src.datasets.mnist"):
    wrapt.register_post_import_hook(lambda module: setattr(module, "load_data", mnist), dataset)
wrapt.register_post_import_hook(
    lambda module: report_fits(module.TensorFlowTrainer), "keras.src.backend.tensorflow.trainer"
)
wrapt.register_post_import_hook(lambda module: report_fits(module.Model), "tf_keras.src.engine.training")
wrapt.register_post_import_hook(prepare_keras, KERAS)
wrapt.register_post_import_hook(prepare_tensorflow, "tensorflow")
