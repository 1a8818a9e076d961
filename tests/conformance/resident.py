"""A process that makes a strategy once, and then runs the cases whose names it reads from stdin.

python -m tests.conformance.resident FLAVOUR TOPOLOGY FOLDER RANK

FLAVOUR is oracle, stock or tfdist. Each line of stdin is a JSON object that names a case. The answer is written to a
file, which appears when it is complete.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.conformance.case import (
    ONE_DEVICE,
    TOPOLOGIES,
    UNORDERED,
    Run,
    Topology,
    all_cases,
    distributed_cases,
    float32_cases,
    trains_on_a_gpu,
)
from tests.matrix.rows import own_cases

# Of each logical GPU. Several processes share a GPU.
PART_MEGABYTES = 4096


def stock_strategy(topology: Topology) -> Any:
    """Makes the strategy as a user of TensorFlow would. A worker or ps of a parameter-server cluster serves instead."""
    import tensorflow as tf

    if topology.devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        count = [tf.config.LogicalDeviceConfiguration()] * topology.devices
        tf.config.set_logical_device_configuration(cpu, count)
    names = [f"CPU:{i}" for i in range(topology.devices)]
    match topology.strategy:
        case "one_device":
            return tf.distribute.OneDeviceStrategy("/CPU:0")
        case "mirrored":
            return tf.distribute.MirroredStrategy(names)
        case "central_storage":
            return tf.distribute.experimental.CentralStorageStrategy(names, "CPU:0")
        case "multi_worker_mirrored":
            with several_cpus(topology.devices):
                return tf.distribute.MultiWorkerMirroredStrategy()
        case _:
            resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
            if resolver.task_type in ("worker", "ps"):
                tf.distribute.Server(
                    resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
                ).join()
            return tf.distribute.ParameterServerStrategy(resolver)


@contextlib.contextmanager
def several_cpus(count: int) -> Any:
    """Lets stock TensorFlow use all logical CPUs of a worker. It would use one CPU if the worker has no GPU."""
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

    stock = CollectiveAllReduceExtended._initialize_local_devices

    def local_devices(self: Any, resolver: Any, worker_device: str) -> Any:
        return tuple(f"{worker_device}/device:CPU:{i}" for i in range(count)), "CPU"

    CollectiveAllReduceExtended._initialize_local_devices = local_devices
    try:
        yield
    finally:
        CollectiveAllReduceExtended._initialize_local_devices = stock


def tfdist_strategy(topology: Topology) -> Any:
    """Makes the strategy as a user of tfdist would."""
    import tfdist

    # "native" makes it an error if the transport cannot be used, so that no cell passes through TensorFlow instead.
    transport = os.environ.get("TFDIST_CONFORMANCE_TRANSPORT")
    several = topology.strategy == "multi_worker_mirrored"
    if trains_on_a_gpu():
        use_parts_of_a_gpu(topology.devices)
    takes_devices = topology.strategy in ("mirrored", "central_storage", "multi_worker_mirrored")
    return tfdist.create_strategy(
        topology.strategy,
        devices=topology.devices if takes_devices else None,
        all_reduce=tfdist.AllReduceOptions(transport=transport) if transport and several else None,
        startup_timeout_seconds=60 if topology.workers > 1 or topology.ps else None,
    )


def use_parts_of_a_gpu(count: int) -> None:
    """Splits the first GPU, and lets it compute in float32 as a CPU does, to which it is compared."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise ValueError("expected a GPU for TFDIST_CONFORMANCE_DEVICES=GPU, received none; leave the variable out.")
    gpu = gpus[0]
    if count > 1:
        part = tf.config.LogicalDeviceConfiguration(memory_limit=PART_MEGABYTES)
        tf.config.set_logical_device_configuration(gpu, [part] * count)
    tf.config.experimental.enable_tensor_float_32_execution(False)


def healthy(strategy: Any) -> bool:
    """Returns whether the strategy can still compute. After an error its cluster may be broken."""
    import tensorflow as tf

    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        return float(coordinator.schedule(tf.function(lambda: tf.ones([]))).fetch()) == 1
    values = strategy.run(tf.function(lambda: tf.ones([])))
    return int(strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)) == strategy.num_replicas_in_sync


def plain(value: Any) -> Any:
    """Converts a result to JSON types. Arrays and tensors become lists of floats."""
    import numpy as np

    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (str, bool, int, type(None))):
        return value
    if isinstance(value, float):
        return value
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind in "iub" and array.ndim == 0:
        return int(array)
    return array.astype(float).tolist()


def compute_in(floatx: str) -> None:
    """Sets Keras's default float type."""
    import tensorflow as tf

    tf.keras.backend.set_floatx(floatx)
    tf.keras.mixed_precision.set_global_policy(floatx)


def forget() -> None:
    """Resets the state of Keras, so that a case does not affect the next one."""
    import tensorflow as tf

    compute_in("float32")
    tf.keras.backend.clear_session()
    gc.collect()
    # TensorFlow never frees some graphs. Collections, of which clear_session makes one, would visit them all again.
    gc.freeze()


def main() -> None:
    """Runs cases until stdin ends."""
    flavour, name, folder, rank = sys.argv[1:]
    topology = next(t for t in (*TOPOLOGIES, UNORDERED, ONE_DEVICE) if t.name == name)
    # The strategy is made first, because cases start TensorFlow.
    make = {"oracle": lambda topology: None, "stock": stock_strategy, "tfdist": tfdist_strategy}[flavour]
    strategy = make(topology)
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    assert flavour == "tfdist" or "tfdist" not in sys.modules
    cases = {**all_cases(), **float32_cases(), **distributed_cases(), **own_cases()}
    answer(Path(folder), f"ready-{rank}", {})
    for line in sys.stdin:
        request = json.loads(line)
        own = Path(request["folder"])
        as_topology = next(t for t in (*TOPOLOGIES, UNORDERED) if t.name == request["topology"])
        run = Run(strategy, as_topology, own / "files", int(rank))
        print(f"---- {request['case']}", flush=True)
        case = cases[request["case"]]
        try:
            compute_in(case.floatx)
            answer(own, f"result-{rank}", {"value": plain(case.function(run))})
        except Exception as error:
            traceback.print_exc()
            answer(own, f"result-{rank}", {"error": f"{type(error).__name__}: {str(error).strip()}"[:3000]})
            if strategy is not None:
                with contextlib.suppress(Exception):
                    answer(own, f"healthy-{rank}", {"healthy": healthy(strategy)})
        try:
            forget()
        except Exception:
            traceback.print_exc()
    # The process exits at once, without waiting for the threads of a coordinator or for the shutdown of collectives.
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def answer(folder: Path, name: str, value: Any) -> None:
    """Writes a file under a scratch name and renames it, so that nobody reads half of it."""
    scratch = folder / f".{name}"
    scratch.write_text(json.dumps(value))
    scratch.rename(folder / name)


if __name__ == "__main__":
    main()
