"""On several replicas SyncBatchNormalization computes what float64 NumPy computes for the whole global batch."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.processes import WARM_LAUNCH

# Runs the layer on rows that are split over replicas, and prints outputs and gradients in the order of the rows.
PROGRAM = """
import json, sys
import numpy as np
import tfdist

name, devices, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
strategy = tfdist.create_strategy(name, devices=devices) if devices else tfdist.create_strategy(name)
import tensorflow as tf
from tfdist.keras_compat import keras_in_use
from tfdist.layers import SyncBatchNormalization

data = np.load(folder + "/data.npz")
for case in json.load(open(folder + "/cases.json")):
    tf.keras.backend.clear_session()
    x, slope = (data[f"{case['data']}_{one}"] for one in ("x", "slope"))
    dtype = case.get("dtype", "float32")
    bounds = np.cumsum([0, *case["rows"]])
    with strategy.scope():
        # Keras 2 keeps float32 variables for a float16 layer, and has no mixed precision on central storage.
        mixed = dtype == "float16" and keras_in_use().is_keras3
        layer = SyncBatchNormalization(dtype="mixed_float16" if mixed else dtype, momentum=0.9)
        layer.build((None, *x.shape[1:]))
        layer.gamma.assign(data["gamma"])
        layer.beta.assign(data["beta"])

    def rows_of(values):
        def part(context):
            number = context.replica_id_in_sync_group
            return tf.constant(values[bounds[number] : bounds[number + 1]], dtype)
        return strategy.experimental_distribute_values_from_function(part)

    @tf.function
    def step(x, slope):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(tf.cast(y, tf.float32) * tf.cast(slope, tf.float32))
        gamma, beta = (tf.convert_to_tensor(v) for v in (layer.gamma, layer.beta))
        sums = tape.gradient(loss, [x, *layer.trainable_variables])
        context = tf.distribute.get_replica_context()
        return y, sums[0], *context.all_reduce("SUM", sums[1:])

    y, dx, dgamma, dbeta = strategy.run(step, args=(rows_of(x), rows_of(slope)))
    local = strategy.experimental_local_results
    lists = lambda values: np.concatenate([np.asarray(one, "float64") for one in local(values)]).tolist()
    result = {"case": case["name"], "y": lists(y), "dx": lists(dx)}
    for key, value in (("dgamma", dgamma), ("dbeta", dbeta)):
        result[key] = np.asarray(local(value)[0], "float64").tolist()
    with strategy.scope():
        result["mean"], result["variance"] = (
            np.asarray(one.numpy(), "float64").tolist() for one in (layer.moving_mean, layer.moving_variance)
        )
    print("RESULT", json.dumps(result), flush=True)
"""

CASES = [
    {"name": "even", "data": "usual", "rows": [8, 8]},
    {"name": "uneven", "data": "usual", "rows": [13, 3]},
    {"name": "an empty replica", "data": "usual", "rows": [0, 16]},
    {"name": "mean of 10,000 deviations", "data": "far", "rows": [5, 11]},
    {"name": "float16", "data": "usual", "rows": [5, 11], "dtype": "float16"},
    {"name": "images", "data": "images", "rows": [7, 9]},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    data = {"gamma": rng.normal(size=3).astype("float32"), "beta": rng.normal(size=3).astype("float32")}
    for name, shape, mean in (("usual", (16, 3), 0.5), ("far", (16, 3), 1e4), ("images", (16, 5, 4, 3), -2.0)):
        data[f"{name}_x"] = (rng.normal(size=shape) + mean).astype("float32")
        data[f"{name}_slope"] = rng.normal(size=shape).astype("float32")
    place = tmp_path_factory.mktemp("data")
    np.savez(place / "data.npz", **data)
    (place / "cases.json").write_text(json.dumps(CASES))
    (place / "program.py").write_text(PROGRAM)
    return place


def reference(case, data, *, unbiased):
    """Returns batch normalization of all rows and its gradient in float64, computed with the formulas of the paper."""
    dtype = case.get("dtype", "float32")
    x, slope = (data[f"{case['data']}_{one}"].astype(dtype).astype("float64") for one in ("x", "slope"))
    gamma, beta = (data[one].astype("float64") for one in ("gamma", "beta"))
    axes = tuple(range(x.ndim - 1))
    count = np.prod([x.shape[axis] for axis in axes])
    mean, variance = x.mean(axes), x.var(axes)
    scale = 1 / np.sqrt(variance + 1e-3)
    unit = (x - mean) * scale
    dgamma, dbeta = (slope * unit).sum(axes), slope.sum(axes)
    dx = gamma * scale * (slope - dbeta / count - unit * dgamma / count)
    kept = variance * count / (count - 1) if unbiased and x.ndim == 4 else variance
    return {
        "y": unit * gamma + beta,
        "dx": dx,
        "dgamma": dgamma,
        "dbeta": dbeta,
        "mean": 0.1 * mean,
        "variance": 0.9 + 0.1 * kept,
    }


def results(finished):
    assert finished.code == 0, finished.err
    return [json.loads(line.partition("RESULT ")[2]) for line in finished.out.splitlines() if "RESULT " in line]


def compare(ranks, folder):
    from tfdist.keras_compat import keras_in_use

    data = np.load(folder / "data.npz")
    for case, *found in zip(CASES, *ranks, strict=True):
        expected = reference(case, data, unbiased=not keras_in_use().is_keras3)
        tolerance = 1e-2 if case.get("dtype") == "float16" else 1e-5
        for key, value in expected.items():
            got = [np.asarray(one[key]) for one in found]
            # Each worker prints y and dx for the rows of its own replicas only, and every other value completely.
            together = np.concatenate([one for one in got if one.size]) if key in ("y", "dx") else None
            for one in [together] if together is not None else got:
                error = np.abs(one - value).max() / np.abs(value).max()
                assert error <= tolerance, (case["name"], key, error)


@pytest.mark.parametrize("name", ["mirrored", pytest.param("central_storage", marks=pytest.mark.full)])
def test_two_replicas_normalize_as_one_device(name, folder, children):
    compare([results(children.start_command(str(folder / "program.py"), name, "2", str(folder)).end())], folder)


def test_two_workers_normalize_as_one_device(folder, children, tmp_path):
    command = [*WARM_LAUNCH, "--workers", "2", "--timeout-seconds", "280", "--log-dir", str(tmp_path)]
    finished = children.start_command(
        *command, str(folder / "program.py"), "multi_worker_mirrored", "0", str(folder)
    ).end()
    assert finished.code == 0, finished.err
    logs = sorted(tmp_path.glob("*worker*"))
    assert len(logs) == 2, logs
    ranks = [
        [json.loads(line.partition("RESULT ")[2]) for line in log.read_text().splitlines() if "RESULT " in line]
        for log in logs
    ]
    compare(ranks, folder)
