"""What the tests of GPUs run, in a process of its own: python -m tests.gpu.programs PROGRAM KIND [FILE].

KIND is GPU or CPU, so that a machine without a GPU runs each program on logical CPUs. A program prints one line of JSON
with the numbers that a test looks at. FILE has what one device computes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tfdist.test.programs import PROGRAMS, use_float64
from tfdist.verify.compare import error_of

WORKERS = 2
_PART_MEGABYTES = 2048


def split(kind: str, parts: int) -> list[str]:
    """Splits the first device into logical ones, before TensorFlow starts, and returns their names."""
    configuration = tf.config.LogicalDeviceConfiguration
    one = configuration(memory_limit=_PART_MEGABYTES) if kind == "GPU" else configuration()
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices(kind)[0], [one] * parts)
    return [f"{kind}:{part}" for part in range(parts)]


def has_started() -> bool:
    """Returns whether TensorFlow has taken the devices."""
    from tensorflow.python.eager import context

    return bool(context.context()._initialized)


def errors(strategy: Any, file: str) -> dict[str, float]:
    """Returns the largest relative difference of each training of `tfdist test` from one CPU."""
    expected = json.loads(Path(file).read_text())
    found = {}
    for check, program in PROGRAMS.items():
        own = program(strategy, WORKERS)
        found[check] = max(error_of(own[name], value) for name, value in expected[check].items())
    return found


def memory(kind: str, file: str) -> dict[str, Any]:
    """Memory growth is set before TensorFlow takes the devices."""
    before = has_started()
    strategy = tfdist.create_strategy("mirrored", devices=[f"{kind}:0"])
    gpus = tf.config.list_physical_devices("GPU") if kind == "GPU" else []
    grows = [tf.config.experimental.get_memory_growth(gpu) for gpu in gpus]
    with strategy.scope():
        variable = tf.Variable(tf.ones([1024, 1024]))
    taken = [tf.config.experimental.get_memory_info("GPU:0")["peak"] >> 20 for _ in gpus[:1]]
    return {"before": before, "grows": grows, "device": variable.values[0].device, "megabytes": taken}


def one_device_in_parts(kind: str, file: str) -> dict[str, Any]:
    """One device that is split into two trains as one device does."""
    names = split(kind, 2)
    use_float64()
    strategy = tfdist.create_strategy("mirrored", devices=names, sync_batch_norm=True)
    return {"replicas": strategy.num_replicas_in_sync, "errors": errors(strategy, file)}


def nccl(kind: str, file: str) -> dict[str, Any]:
    """Gradients are summed by NCCL, or in another way on CPUs, which NCCL does not know."""
    use_float64()
    options = tfdist.AllReduceOptions(algorithm="nccl" if kind == "GPU" else "hierarchical_copy", num_packs=2)
    strategy = tfdist.create_strategy(
        "mirrored", devices=[f"{kind}:{i}" for i in range(2)], all_reduce=options, sync_batch_norm=True
    )
    return {"replicas": strategy.num_replicas_in_sync, "errors": errors(strategy, file)}


def distributed_optimizer(kind: str, file: str) -> dict[str, Any]:
    """DistributedOptimizer sends gradients in packs, also with compression, and counts what it sends."""
    from tfdist.optimizers import DistributedOptimizer, gradient_traffic

    names = split(kind, 2)
    strategy = tfdist.create_strategy("mirrored", devices=names)
    found: dict[str, Any] = {}
    for compression in ("none", "fp16", "topk:0.25"):
        tf.keras.utils.set_random_seed(1)
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Input((64,)), tf.keras.layers.Dense(32)])
            optimizer = DistributedOptimizer(
                tf.keras.optimizers.SGD(0.1), all_reduce=tfdist.AllReduceOptions(compression=compression)
            )
            model.compile(optimizer, "mse")
        x = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
        losses = model.fit(x, x[:, :32], batch_size=16, epochs=3, verbose=0).history["loss"]
        traffic = gradient_traffic(model.optimizer)
        found[compression] = {"losses": losses, "steps": traffic.steps, "ratio": traffic.ratio}
    return found


def mixed_float16(kind: str, file: str) -> dict[str, Any]:
    """A training in mixed_float16 lowers the loss nearly as one in float32 does."""
    names = split(kind, 2)
    strategy = tfdist.create_strategy("mirrored", devices=names)
    found: dict[str, Any] = {}
    for policy in ("float32", "mixed_float16"):
        tf.keras.mixed_precision.set_global_policy(policy)
        found[policy] = _losses(strategy)
    return found


def xla(kind: str, file: str) -> dict[str, Any]:
    """XLA compiles the step of one device, and is refused on two, where stock TensorFlow fails in the first step."""
    names = split(kind, 2)
    one = tfdist.create_strategy("one_device", devices=names[:1])
    found: dict[str, Any] = {"plain": _losses(one), "compiled": _losses(one, jit_compile=True)}
    try:
        _losses(tfdist.create_strategy("mirrored", devices=names), jit_compile=True)
    except ValueError as error:
        found["refused"] = str(error)
    return found


def lamb(kind: str, file: str) -> dict[str, Any]:
    """The time of a step of LAMB, with and without XLA."""
    from tfdist.optimizers import LAMB

    generator = np.random.default_rng(0)
    width = 1024 if kind == "GPU" else 64
    shapes = [(width, width), (width,)] * 8
    found: dict[str, Any] = {"parameters": sum(int(np.prod(shape)) for shape in shapes)}
    with tf.device(f"/{kind}:0"):
        gradients = [tf.constant(generator.normal(size=shape).astype("float32")) for shape in shapes]
        for jit in (False, True):
            variables = [tf.Variable(gradient) for gradient in gradients]
            optimizer = LAMB(1e-3, weight_decay=0.01)
            optimizer.build(variables)

            @tf.function(jit_compile=jit)
            def step(optimizer: Any = optimizer, variables: Any = variables) -> None:
                optimizer.apply_gradients(zip(gradients, variables, strict=True))

            step()
            times = []
            for _ in range(5):
                begun = time.perf_counter()
                step()
                # A GPU computes in the background; reading a value waits for it.
                variables[-1].numpy()
                times.append(1e3 * (time.perf_counter() - begun))
            found["compiled" if jit else "plain"] = sorted(times)[2]
            found["norm compiled" if jit else "norm plain"] = float(np.linalg.norm(variables[0].numpy()))
        found["device"] = variables[0].device
    return found


def _losses(strategy: Any, **options: Any) -> list[float]:
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((8,)),
                tf.keras.layers.Dense(16, "tanh"),
                tf.keras.layers.Dense(1, dtype="float32"),
            ]
        )
        model.compile(tf.keras.optimizers.Adam(0.05), "mse", **options)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    history = model.fit(x, x.sum(axis=1), batch_size=16, epochs=5, shuffle=False, verbose=0)
    return [float(loss) for loss in history.history["loss"]]


if __name__ == "__main__":
    program, device_kind, *rest = sys.argv[1:]
    print(json.dumps(globals()[program](device_kind, *(rest or [""]))))
