"""What a canary is, how it runs, and the programs in which both Kerases show the same defect."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from tests.processes import launch, run

PRELUDE = """
import os, sys
import numpy as np
import tensorflow as tf
assert "tfdist" not in sys.modules
keras = tf.keras
x, y = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")


def data():
    # Made after the strategy, which must be the first to touch TensorFlow.
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


def logical_cpus(count):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)


def mirrored():
    logical_cpus(2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def central_storage():
    logical_cpus(2)
    return tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")


def on_each_replica(function):
    # What each of two replicas gets: function(0), function(1).
    return strategy.experimental_distribute_values_from_function(
        lambda context: function(context.replica_id_in_sync_group)
    )


def model_of(*layers, **options):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), *layers, keras.layers.Dense(1, **options)])
        model.compile("sgd", "mse")
    return model


def outcome(function):
    try:
        print("OUTCOME", function(), flush=True)
    except Exception as error:
        print("OUTCOME raised", type(error).__name__, flush=True)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canary:
    """A program that runs stock TensorFlow and Keras, and what it says as long as they have the defect.

    Attributes:
        mends: the mends that are for the defect.
        shows: what goes wrong; the name of the test.
        program: what follows PRELUDE; it calls `outcome`.
        outcome: the line that is printed.
        launch: the arguments of `tfdist launch`, if one process does not show it.
    """

    mends: tuple[str, ...]
    shows: str
    program: str
    outcome: str
    launch: tuple[str, ...] = ()

    def lines(self, folder: Path) -> list[str]:
        """Runs the program and returns the lines that say OUTCOME."""
        (folder / "canary.py").write_text(PRELUDE + self.program)
        if self.launch:
            ended = launch(*self.launch, "--", "canary.py", cwd=folder, deadline_seconds=120)
        else:
            ended = run([sys.executable, "canary.py"], cwd=folder, deadline_seconds=120)
        return [line.rstrip() for line in ended.text.splitlines() if "OUTCOME" in line]


# The last batch has 2 rows on the first replica and 1 on the other; only the last row pulls at the weight.
UNEVEN_LAST_BATCH = """
strategy = mirrored()
with strategy.scope():
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.layers.Input((1,)), layer])
    model.compile(keras.optimizers.SGD(1.0), "mse")
targets = np.array([[0]] * 6 + [[3]], "float32")
batches = tf.data.Dataset.from_tensor_slices((np.ones([7, 1], "float32"), targets)).batch(4)
model.fit(batches, verbose=0)
outcome(lambda: round(float(model.get_weights()[0][0, 0]), 3))
"""
# The mean of 3 rows would move it by 2.
UNEVEN_LAST_BATCH_OUTCOME = "OUTCOME 3.0"

# On a CPU, with oneDNN.
CONVOLUTION_OF_NO_ROWS = """
layer = keras.layers.Conv2D(3, 3)
layer.build((None, 8, 8, 2))


@tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 2])])
def channels(rows):
    return tf.shape(layer(rows))


outcome(lambda: channels(tf.zeros([0, 8, 8, 2])).numpy().tolist())
"""
# The shape of the input, not [0, 6, 6, 3].
CONVOLUTION_OF_NO_ROWS_OUTCOME = "OUTCOME [0, 8, 8, 2]"

JIT_COMPILE = """
strategy = mirrored()
model = model_of()
model.compile("sgd", "mse", jit_compile=True)
outcome(lambda: bool(model.fit(data(), verbose=0)))
"""

# Whether tf.data is to tune what only hands on batches to each of two devices.
TUNED_DEVICE_DATASETS = """
from tensorflow.python.data.ops import multi_device_iterator_ops
strategy = mirrored()
stock, tuned = multi_device_iterator_ops._create_device_dataset, []


def create(*args):
    dataset = stock(*args)
    tuned.append(dataset.options().autotune.enabled is not False)
    return dataset


multi_device_iterator_ops._create_device_dataset = create
next(iter(strategy.experimental_distribute_dataset(data())))
outcome(lambda: tuned)
"""

FIT_ON_PARAMETER_SERVERS = """
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
model = model_of()
try:
    model.fit(data(), verbose=0)
    print("OUTCOME trained", flush=True)
except Exception:
    # Which of the workers' errors comes first is open.
    print("OUTCOME raised", flush=True)
os._exit(0)
"""

# What each worker has written, of files that one is enough to write; a name of its own where two would collide.
FILES_OF_EACH_WORKER = """
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" and "w" in str(args[1]) else None)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = strategy.cluster_resolver.task_id
model = model_of()
model.save("model.keras")
written = ["model"] if "model.keras" in opened else []


def begin(name, callback, path):
    callback.set_model(model)
    callback.on_train_begin()
    callback.on_epoch_end(0, {"loss": 1.0})
    written.extend([name] if os.path.exists(path) else [])


begin("csv", keras.callbacks.CSVLogger(f"{rank}.csv"), f"{rank}.csv")
if hasattr(keras, "ops"):
    # Keras 2 sends these elsewhere.
    begin("board", keras.callbacks.TensorBoard(f"board-{rank}"), f"board-{rank}/train")
    begin("backup", keras.callbacks.BackupAndRestore(f"backup-{rank}"), f"backup-{rank}/training_metadata.json")
outcome(lambda: " ".join(written))
"""


ONE_CPU_FOR_EACH_WORKER = """
logical_cpus(2)
outcome(lambda: tf.distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync)
"""

# What compile leaves of an optimizer, whatever the strategy was asked for.
PLAIN_OPTIMIZER = """
strategy = mirrored()
strategy._tfdist_all_reduce = None
outcome(lambda: [name for name in vars(model_of().optimizer) if "tfdist" in name])
"""

# The seconds that a sum over workers may take, unless a strategy is asked for another number.
NO_DEADLINE = """
outcome(lambda: tf.distribute.experimental.CommunicationOptions().timeout_seconds)
"""

# Whether a class of Keras has what a file could be kept in.
NO_ASSETS = """
outcome(lambda: [hasattr(keras.optimizers.Optimizer, name) for name in ("save_assets", "load_assets")])
"""

# Data without end: an epoch that is told no steps goes on.
ENDLESS_DATA = """
class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch > 20
        self.batch = batch


strategy = mirrored()
endless = strategy.distribute_datasets_from_function(lambda context: data().repeat())
endless.steps_per_epoch = 2
stop = Stop()
model = model_of()
outcome(lambda: bool(model.fit(endless, verbose=0, callbacks=[stop])) and stop.batch > 20)
"""

# The launchers that streams are made of: each orders its collectives by a token of its own.
LAUNCHERS = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
launcher = strategy.extended._cross_device_ops._launchers[0]
names = ("_group_key", "_group_size", "_collective_keys", "_device", "_options")
another = type(launcher)(*(getattr(launcher, name) for name in names))
outcome(lambda: another._ordering_token is not launcher._ordering_token)
"""

# The canaries that either Keras, or TensorFlow under it, has in common.
COMMON = (
    Canary(
        mends=("convolution_of_no_rows",),
        shows="a convolution of no rows has the shape of its input",
        program=CONVOLUTION_OF_NO_ROWS,
        outcome=CONVOLUTION_OF_NO_ROWS_OUTCOME,
    ),
    Canary(
        mends=("device_iterators_end_late",),
        shows="a thread tunes what each device reads through",
        program=TUNED_DEVICE_DATASETS,
        outcome="OUTCOME [True, True]",
    ),
    Canary(
        mends=("one_cpu_for_each_worker",),
        shows="a worker without GPUs trains on one of its logical CPUs",
        program=ONE_CPU_FOR_EACH_WORKER,
        outcome="OUTCOME 1",
    ),
    Canary(
        mends=("compression_needs_its_optimizer",),
        shows="compile leaves the optimizer as it is",
        program=PLAIN_OPTIMIZER,
        outcome="OUTCOME []",
    ),
    Canary(
        mends=("wrapping_is_not_saved",),
        shows="an optimizer keeps nothing in the assets of a file",
        program=NO_ASSETS,
        outcome="OUTCOME [False, False]",
    ),
    Canary(
        mends=(),
        shows="each launcher of collectives has an order of its own",
        program=LAUNCHERS,
        outcome="OUTCOME True",
    ),
)
