"""The class Canary, and the programs that show the same defect in Keras 2 and in Keras 3."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from tests.canaries import data_programs, metric_programs
from tests.processes import launch, run

PRELUDE = """
import os, sys
import numpy as np
import tensorflow as tf
assert "tfdist" not in sys.modules
keras = tf.keras
x, y = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")


def data():
    # A strategy must be created before TensorFlow starts, so the data is made after it.
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
    # Gives function(0) to the first replica and function(1) to the second.
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
    """A program for stock TensorFlow and Keras, and the line that it prints as long as they have a defect.

    Attributes:
        mends: the names of the mends for the defect.
        shows: the defect in a few words, which are the id of the test.
        program: the code after PRELUDE; it calls `outcome`.
        outcome: the line that the program prints.
        launch: the arguments of `tfdist launch` for a defect that only a cluster shows; empty runs one process.
        releases: the first and the last release of Keras that has the defect; None if all tested releases have it.
        otherwise: the line that the program prints in the other releases.
        not_with_tensorflow: releases of TensorFlow with which the program does not show the defect, but `otherwise`.
    """

    mends: tuple[str, ...]
    shows: str
    program: str
    outcome: str
    launch: tuple[str, ...] = ()
    releases: tuple[tuple[int, int], tuple[int, int]] | None = None
    otherwise: str = ""
    not_with_tensorflow: tuple[tuple[int, int], ...] = ()

    def expected(self, keras: tuple[int, int], tensorflow: tuple[int, int]) -> str:
        """Returns the line that the program prints with a release of Keras and a release of TensorFlow."""
        is_there = self.releases is None or self.releases[0] <= keras <= self.releases[1]
        return self.outcome if is_there and tensorflow not in self.not_with_tensorflow else self.otherwise

    def lines(self, folder: Path) -> list[str]:
        """Runs the program and returns the lines that contain OUTCOME."""
        (folder / "canary.py").write_text(PRELUDE + self.program)
        if self.launch:
            ended = launch(*self.launch, "--", "canary.py", cwd=folder, deadline_seconds=120)
        else:
            ended = run([sys.executable, "canary.py"], cwd=folder, deadline_seconds=120)
        return [line.rstrip() for line in ended.text.splitlines() if "OUTCOME" in line]


# In the last batch, the first replica has 2 rows and the second has 1. Only this last row has a target other than 0,
# so only it changes the weight.
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
# The mean over the 3 rows would move the weight by 2.
UNEVEN_LAST_BATCH_OUTCOME = "OUTCOME 3.0"

# The defect appears on a CPU with oneDNN.
CONVOLUTION_OF_NO_ROWS = """
layer = keras.layers.Conv2D(3, 3)
layer.build((None, 8, 8, 2))


@tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 2])])
def channels(rows):
    return tf.shape(layer(rows))


outcome(lambda: channels(tf.zeros([0, 8, 8, 2])).numpy().tolist())
"""
# The program prints the shape of the input. The right shape is [0, 6, 6, 3].
CONVOLUTION_OF_NO_ROWS_OUTCOME = "OUTCOME [0, 8, 8, 2]"

JIT_COMPILE = """
strategy = mirrored()
model = model_of()
model.compile("sgd", "mse", jit_compile=True)
outcome(lambda: bool(model.fit(data(), verbose=0)))
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
    # The error of either worker may come first, so its type is not printed.
    print("OUTCOME raised", flush=True)
os._exit(0)
"""

# Prints which files each worker has written, although one worker is enough for all of them. The rank is in the name of
# each file that the workers would otherwise write at the same place.
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
    # On workers other than the chief, Keras 2 writes the files of these callbacks to other folders.
    begin("board", keras.callbacks.TensorBoard(f"board-{rank}"), f"board-{rank}/train")
    begin("backup", keras.callbacks.BackupAndRestore(f"backup-{rank}"), f"backup-{rank}/training_metadata.json")
outcome(lambda: " ".join(written))
"""


ONE_CPU_FOR_EACH_WORKER = """
logical_cpus(2)
outcome(lambda: tf.distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync)
"""

# DistributedOptimizer replaces a method of one optimizer. The mend of `compile` assumes that the model then uses this
# optimizer and its replaced method, and that `compile` has no option for compression.
REPLACED_METHOD = """
import inspect
strategy = mirrored()
name, calls = "apply" if hasattr(keras, "ops") else "aggregate_gradients", []
model = model_of()
with strategy.scope():
    optimizer = keras.optimizers.SGD()
    stock = getattr(optimizer, name)
    object.__setattr__(optimizer, name, lambda *args, **options: (calls.append(name), stock(*args, **options))[1])
    model.compile(optimizer, "mse")
model.fit(data(), verbose=0)
options = inspect.signature(model.compile).parameters
outcome(lambda: [model.optimizer is optimizer, bool(calls), "compression" in options])
"""

# Prints whether optimizers of Keras have the methods that save and load assets of a model file.
NO_ASSETS = """
outcome(lambda: [hasattr(keras.optimizers.Optimizer, name) for name in ("save_assets", "load_assets")])
"""

# Streams of the all-reduce are built from launchers. Prints whether each launcher has an ordering token of its own.
LAUNCHERS = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
launcher = strategy.extended._cross_device_ops._launchers[0]
names = ("_group_key", "_group_size", "_collective_keys", "_device", "_options")
another = type(launcher)(*(getattr(launcher, name) for name in names))
outcome(lambda: another._ordering_token is not launcher._ordering_token)
"""

TWO_STRATEGIES = """
def total(strategy, shape):
    def step():
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones(shape))

    return float(tf.reduce_sum(strategy.experimental_local_results(tf.function(lambda: strategy.run(step))())[0]))


strategies = [mirrored(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])]
outcome(lambda: [total(strategy, shape) for strategy, shape in zip(strategies, ([2], [3]))])
"""

# The canaries of defects that Keras 2 and Keras 3 share, or that TensorFlow has.
COMMON = (
    Canary(
        mends=("numbers_not_read_from_replicas",),
        shows="int() and float() do not accept a variable of several replicas",
        program="""
strategy = mirrored()
with strategy.scope():
    optimizer = keras.optimizers.SGD(0.5)
outcome(lambda: [int(optimizer.iterations), float(optimizer.learning_rate)])
""",
        outcome="OUTCOME raised TypeError",
    ),
    Canary(
        mends=("collectives_shared_by_strategies",),
        shows="the collectives of a second strategy fail",
        program=TWO_STRATEGIES,
        outcome="OUTCOME raised InvalidArgumentError",
    ),
    Canary(
        mends=("gathers_refuse_types",),
        shows="workers cannot gather bool",
        program="""
strategy = tf.distribute.MultiWorkerMirroredStrategy()
outcome(lambda: strategy.gather(strategy.run(lambda: tf.ones([1], "bool")), axis=0))
""",
        outcome="[worker 0] OUTCOME raised TypeError",
        launch=("--workers", "2"),
    ),
    Canary(
        mends=("gathers_crash_without_entries",),
        shows="to gather no entries ends the process",
        program="""
import signal, subprocess, sys
CRASHING = '''
import threading
import tensorflow as tf
from tensorflow.python.ops import collective_ops
one = tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [one, one])
tf.config.list_logical_devices()
def gather(device):
    with tf.device(device):
        collective_ops.all_gather_v2(tf.zeros([0, 2]), 2, 1, 1)
for device in ("CPU:0", "CPU:1"):
    threading.Thread(target=gather, args=[device]).start()
'''
outcome(lambda: signal.Signals(-subprocess.run([sys.executable, "-c", CRASHING]).returncode).name)
""",
        outcome="OUTCOME SIGSEGV",
    ),
    Canary(
        mends=("scalars_counted_by_replicas",),
        shows="the mean of a batch has the same weight on each replica, whatever its rows",
        program=metric_programs.MEAN_OF_MEANS,
        outcome="OUTCOME 0.5",
    ),
    Canary(
        mends=("state_stays_on_its_replica",),
        shows="a running mean that a layer assigns is that of the replica's own rows",
        program=metric_programs.RUNNING_MEAN,
        outcome="OUTCOME [0.0, 1.0]",
    ),
    Canary(
        mends=("gradients_used_by_the_step",),
        shows="a gradient that a step subtracts from a weight is that of the replica's own rows",
        program=metric_programs.DESCENT,
        outcome="OUTCOME [0.0, -2.0]",
    ),
    Canary(
        mends=("updates_in_a_condition", "updates_in_a_function"),
        shows="replicas cannot wait for each other in a condition or a function within a step",
        program=metric_programs.WAITS_WITHIN_A_STEP,
        outcome="OUTCOME [True, True]",
    ),
    Canary(
        mends=("metrics_of_no_rows",),
        shows="a metric of one's own is NaN if a replica has no rows",
        program=metric_programs.METRIC_OF_NO_ROWS,
        outcome="OUTCOME nan",
    ),
    Canary(
        mends=("ctc_of_no_rows",),
        shows="the CTC loss of no rows fails",
        program=metric_programs.CTC_OF_NO_ROWS,
        outcome="OUTCOME raised InvalidArgumentError",
    ),
    Canary(
        mends=("convolution_of_no_rows",),
        shows="a convolution of no rows has the shape of its input",
        program=CONVOLUTION_OF_NO_ROWS,
        outcome=CONVOLUTION_OF_NO_ROWS_OUTCOME,
    ),
    Canary(
        mends=("moments_lose_digits",),
        shows="synchronized statistics lose their digits",
        program="""
strategy = mirrored()
with strategy.scope():
    layer = keras.layers.BatchNormalization(momentum=0.0, synchronized=True)
    layer.build((None, 1))
batches = on_each_replica(lambda replica: tf.constant([[99999.0], [100001.0]]))
strategy.run(lambda batch: layer(batch, training=True), args=(batches,))
outcome(lambda: abs(float(np.asarray(layer.moving_variance.numpy())[0]) - 1.0) < 0.1)
""",
        # The variance is 1.
        outcome="OUTCOME False",
    ),
    Canary(
        mends=("generator_arrays_overwritten",),
        shows="results of replicas are written into the arrays of a generator",
        program=data_programs.OVERWRITTEN_ARRAYS,
        outcome="OUTCOME True",
        # TensorFlow 2.18 does not overwrite these arrays. Nothing in its code explains why, so that the mend copies the
        # arrays all the same.
        not_with_tensorflow=((2, 18),),
        otherwise="OUTCOME False",
    ),
    Canary(
        mends=("workers_shuffle_differently",),
        shows="workers shuffle arrays in different orders",
        program=data_programs.ROWS_OF_AN_EPOCH,
        outcome="[worker 0] OUTCOME False",
        launch=("--workers", "2"),
    ),
    Canary(
        mends=("device_iterators_end_late",),
        shows="tf.data tunes the dataset of each device",
        program=data_programs.TUNED_DEVICE_DATASETS,
        outcome="OUTCOME [True, True]",
    ),
    Canary(
        mends=("data_awaited_without_deadline",),
        shows="the wait for the data of other workers has no deadline",
        program=data_programs.NO_DEADLINE,
        outcome="OUTCOME None",
    ),
    Canary(
        mends=("one_cpu_for_each_worker",),
        shows="a worker without GPUs trains on one of its logical CPUs",
        program=ONE_CPU_FOR_EACH_WORKER,
        outcome="OUTCOME 1",
    ),
    Canary(
        mends=("compression_needs_its_optimizer",),
        shows="fit calls a replaced method of the compiled optimizer",
        program=REPLACED_METHOD,
        outcome="OUTCOME [True, True, False]",
    ),
    Canary(
        mends=("wrapping_is_not_saved",),
        shows="an optimizer cannot save assets in a model file",
        program=NO_ASSETS,
        outcome="OUTCOME [False, False]",
    ),
    Canary(
        mends=(),
        shows="each launcher of collectives has an ordering token of its own",
        program=LAUNCHERS,
        outcome="OUTCOME True",
    ),
)
