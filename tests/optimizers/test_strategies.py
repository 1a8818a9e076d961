"""Each optimizer makes the same steps on several replicas and workers as on one device."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.processes import WARM_LAUNCH

PROGRAM = """
import json, sys
import numpy as np
import tfdist
from tfdist.optimizers import create_optimizer

name, devices = sys.argv[1], int(sys.argv[2])
strategy = tfdist.create_strategy(name, devices=devices) if devices else tfdist.create_strategy(name)
import tensorflow as tf

rng = np.random.default_rng(0)
x, y = rng.normal(size=(40, 6)).astype("float32"), rng.normal(size=(40, 2)).astype("float32")
for optimizer, decay in (("lamb", 0.1), ("lars", 0.01), ("momentum_corrected_sgd", 0.01), ("sgd", 0.01)):
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [tf.keras.layers.Input((6,)), tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(2)]
        model = tf.keras.Sequential(layers)
        model.compile(
            create_optimizer(
                optimizer,
                learning_rate=0.02,
                steps_per_epoch=3,
                epochs=4,
                warmup_epochs=1,
                learning_rate_decay="cosine",
                weight_decay=decay,
                exclude_from_weight_decay=[] if optimizer == "sgd" else ["bias"],
            ),
            "mse",
        )
    # The last batch is not full.
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(16), epochs=4, verbose=0)
    print("WEIGHTS", optimizer, json.dumps([w.tolist() for w in model.get_weights()]), flush=True)
"""


def weights(finished):
    assert finished.code == 0, finished.err
    lines = [line.partition("WEIGHTS ")[2] for line in finished.out.splitlines() if "WEIGHTS " in line]
    return [(name, json.loads(values)) for name, _, values in (line.partition(" ") for line in lines)]


@pytest.fixture(scope="module")
def expected(module_children):
    found = dict(weights(module_children.run(PROGRAM, "one_device", "0")))
    assert found.keys() == {"lamb", "lars", "momentum_corrected_sgd", "sgd"}
    return found


def compare(found, expected, times=1):
    assert len(found) == times * len(expected)
    for name, values in found:
        for one, other in zip(values, expected[name], strict=True):
            assert np.abs(np.subtract(one, other)).max() <= 1e-5 * np.abs(other).max()


@pytest.mark.full
@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
def test_two_replicas_make_the_steps_of_one_device(name, expected, children):
    compare(weights(children.run(PROGRAM, name, "2")), expected)


def test_two_workers_make_the_steps_of_one_device(expected, children, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [*WARM_LAUNCH, "--workers", "2", "--timeout-seconds", "280", str(tmp_path / "program.py")]
    compare(weights(children.start_command(*command, "multi_worker_mirrored", "0").end()), expected, times=2)


def test_a_parameter_server_makes_the_steps_of_one_device(expected, children, tmp_path):
    """With one worker, the steps of a parameter server have a fixed order."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [*WARM_LAUNCH, "--workers", "1", "--ps", "1", "--timeout-seconds", "280"]
    compare(
        weights(children.start_command(*command, str(tmp_path / "program.py"), "parameter_server", "0").end()), expected
    )
