"""Each guarded patch has a canary: it fails once upstream has mended the defect, so that the patch is taken out.

Everything here runs stock TensorFlow and Keras, in processes of their own where a runtime has to be configured. The
mend's own check must agree with what stock does.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.processes import ROOT, launch, run

KERAS_3 = not tf.keras.Model.__module__.startswith(("tf_keras", "keras.src.engine"))

PRELUDE = """
import json, os, sys
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


def outcome(function):
    try:
        print("OUTCOME", function())
    except Exception as error:
        print("OUTCOME raised", type(error).__name__)
"""

# Each prints one line "OUTCOME ..." and is followed by what stock says as long as it has the defect.
PROGRAMS_KERAS_3 = {
    "symbolic_build_averages_data": (
        """
logical_cpus(2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    inputs = keras.layers.Input((1,), dtype="string")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(3, 2)(keras.layers.StringLookup(vocabulary=["a"])(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
words = tf.data.Dataset.from_tensor_slices((np.array([["a"]] * 8), y)).batch(4)
outcome(lambda: bool(model.fit(words, verbose=0)))
""",
        "OUTCOME raised",
    ),
    "batch_statistics_stay_local": (
        """
logical_cpus(2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    layer = keras.layers.BatchNormalization(momentum=0.0)
    layer.build((None, 1))
batches = strategy.experimental_distribute_values_from_function(
    lambda context: tf.fill([2, 1], float(context.replica_id_in_sync_group))
)
strategy.run(lambda batch: layer(batch, training=True), args=(batches,))
outcome(lambda: float(np.asarray(layer.moving_mean.numpy())[0]))
""",
        # The first replica's; the average would be 0.5.
        "OUTCOME 0.0",
    ),
    "counter_update_is_read_then_assign": (
        """
logical_cpus(2)
strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
with strategy.scope():
    metric = keras.metrics.Sum()
for _ in range(2):
    strategy.run(lambda: metric.update_state(tf.constant([1.0])))
outcome(lambda: float(metric.total.numpy()))
""",
        # 4 updates of 1: the old value is added once for each replica.
        "OUTCOME 6.0",
    ),
}

CLUSTER_PROGRAM = (
    PRELUDE
    + """
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
outcome(lambda: bool(model.fit(data(), verbose=0)))
os._exit(0)
"""
)

LOGS_PROGRAM_KERAS_3 = (
    PRELUDE
    + """
from keras.src.backend.tensorflow import trainer
strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def step():
    return trainer.reduce_per_replica(strategy.run(lambda: {"loss": tf.constant(1.0)}), strategy, "auto")


outcome(lambda: float(step()["loss"]))
"""
)

LOGS_PROGRAM_KERAS_2 = (
    PRELUDE
    + """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
losses = []
recorder = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"])))
model.fit(data(), verbose=0, callbacks=[recorder])
print("OUTCOME", losses[0])
"""
)

# What each worker has written, of files that one is enough to write; a name of its own where two would collide.
WRITING_PROGRAM = (
    PRELUDE
    + """
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" and "w" in str(args[1]) else None)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = strategy.cluster_resolver.task_id
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
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
print("OUTCOME", *written, flush=True)
"""
)


def _outcome(command: list[str], folder: Path) -> str:
    ended = run(command, cwd=folder, deadline_seconds=120)
    return next(line for line in ended.text.splitlines() if line.startswith("OUTCOME"))


if KERAS_3:

    @pytest.mark.parametrize("name", PROGRAMS_KERAS_3)
    def test_stock_keras_3_has_the_defect(name: str, tmp_path: Path) -> None:
        program, expected = PROGRAMS_KERAS_3[name]
        (tmp_path / "canary.py").write_text(PRELUDE + program)
        assert _outcome([sys.executable, "canary.py"], tmp_path).startswith(expected)

    def test_stock_keras_3_reduces_logs_of_workers_along_an_axis(tmp_path: Path) -> None:
        (tmp_path / "canary.py").write_text(LOGS_PROGRAM_KERAS_3)
        ended = launch("--workers", "2", "--", "canary.py", cwd=tmp_path, deadline_seconds=120)
        assert "[worker 0] OUTCOME raised" in ended.text

    def test_stock_keras_3_writes_files_on_every_worker(tmp_path: Path) -> None:
        (tmp_path / "canary.py").write_text(WRITING_PROGRAM)
        ended = launch("--workers", "2", "--", "canary.py", cwd=tmp_path, deadline_seconds=120)
        # Of the mends files_written_by_every_worker_keras3, logs_written_by_every_worker, backup_owned_by_no_worker.
        assert "[worker 1] OUTCOME model csv board backup" in ended.text

else:

    def test_stock_keras_2_adds_up_the_logs_of_workers(tmp_path: Path) -> None:
        (tmp_path / "canary.py").write_text(LOGS_PROGRAM_KERAS_2)
        ended = launch("--workers", "2", "--", "canary.py", cwd=tmp_path, deadline_seconds=120)
        # The loss of zeros against ones is 1.
        assert "[worker 0] OUTCOME 2.0" in ended.text

    def test_stock_keras_2_writes_files_on_every_worker(tmp_path: Path) -> None:
        (tmp_path / "canary.py").write_text(WRITING_PROGRAM)
        ended = launch("--workers", "2", "--", "canary.py", cwd=tmp_path, deadline_seconds=120)
        # Of the mends files_written_by_every_worker_keras2 and csv_written_by_every_worker.
        assert "[worker 1] OUTCOME model csv" in ended.text


def test_stock_fit_fails_on_parameter_servers(tmp_path: Path) -> None:
    (tmp_path / "canary.py").write_text(CLUSTER_PROGRAM)
    ended = launch("--workers", "2", "--ps", "1", "--", "canary.py", cwd=tmp_path, deadline_seconds=120)
    assert "[chief 0] OUTCOME raised" in ended.text


def test_every_mend_finds_its_defect_in_this_keras() -> None:
    program = (
        "from tfdist.keras_compat import keras_in_use\n"
        "from tfdist.keras_compat.mends import all_mends\n"
        "suiting = [mend for mend in all_mends() if keras_in_use().name in mend.keras]\n"
        "assert suiting\n"
        "print('WITHOUT DEFECT', [mend.name for mend in suiting if not mend.defect_present()])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "WITHOUT DEFECT []" in ended.stdout, ended.stderr
