"""Several workers gather and predict values of every type, or nothing; the values are those of one device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import launch

PROGRAM = """
import json, sys
import tfdist

strategy = tfdist.create_strategy("multi_worker_mirrored", devices=int(sys.argv[1]))
import numpy as np
import tensorflow as tf

keras = tf.keras


def plain(value):
    value = np.asarray(value)
    if value.dtype == object:
        return [str(value.shape), [text.hex() for text in value.ravel()]]
    return [str(value.shape), value.dtype.name, value.tobytes().hex()]


def values(rows):
    # Every pattern of bits comes up that a type can lose on its way: signs, the largest numbers, NaN, infinity.
    number = tf.cast(tf.range(rows), tf.int64) + 1
    huge = tf.bitcast(-number, tf.uint64)
    special = tf.constant([-0.0, np.inf, np.nan, 1.5, -3.0e38])
    found = {
        "bool": number % 2 == 0,
        "bfloat16": tf.cast(special, tf.bfloat16) * tf.cast(number, tf.bfloat16)[:, None],
        "complex64": tf.complex(tf.cast(number, tf.float32), -0.0 * tf.cast(number, tf.float32)),
        "complex128": tf.complex(tf.cast(number, tf.float64), np.float64(np.nan))[:, None, None],
        "text": tf.strings.as_string(number * number * number)[:, None] + ["", chr(0) + "y", "\\u00fc\\xff"],
        "no text": tf.fill([rows], ""),
        "no rows": tf.fill([0, 2], ""),
        "no numbers": tf.zeros([0, 3]),
        "no entries": tf.zeros([rows, 0], tf.int64),
        "int64": -number,
        "float64": tf.cast(number, tf.float64) / 3,
    }
    for bits in (8, 16, 32, 64):
        found[f"uint{bits}"] = tf.cast(huge, f"uint{bits}") if bits < 64 else huge
        found[f"int{bits}"] = tf.cast(huge, f"int{bits}")[:, None] * tf.constant([1, -1], f"int{bits}")
    return found


def of_replica():
    context = tf.distribute.get_replica_context()
    return values(context.replica_id_in_sync_group + 1)


@tf.function
def everyones():
    def of_replica_in_step():
        own = of_replica()
        return {name: tf.distribute.get_replica_context().all_gather(own[name], axis=0) for name in own}

    return strategy.run(of_replica_in_step)


parts = [values(rows + 1) for rows in range(strategy.num_replicas_in_sync)]
expected = {name: plain(tf.concat([part[name] for part in parts], 0)) for name in parts[0]}
gathered = strategy.run(tf.function(of_replica))
found = {name: plain(strategy.gather(value, axis=0)) for name, value in gathered.items()}
in_step = {
    name: plain(strategy.experimental_local_results(value)[-1]) for name, value in everyones().items()
}


class Outputs(keras.layers.Layer):
    def call(self, inputs):
        number = tf.cast(inputs[:, 0], tf.int64)
        return {
            "bool": number % 3 == 0,
            "bfloat16": tf.cast(0.37 * inputs, tf.bfloat16),
            "uint8": tf.cast(number, tf.uint8)[:, None, None] * tf.ones([2, 3], tf.uint8),
            "text": tf.strings.as_string(number * number)[:, None] + ["a", ""],
            "complex64": tf.complex(inputs, -inputs),
        }


inputs = keras.Input((1,))
model = keras.Model(inputs, Outputs()(inputs))
rows = np.arange(19, dtype="float32")[:, None]
one_device = {name: plain(value) for name, value in Outputs()(rows).items()}
with strategy.scope():
    model = keras.Model(inputs, Outputs()(inputs))
predicted = {name: plain(value) for name, value in model.predict(rows, batch_size=8, verbose=0).items()}
print("RESULT", json.dumps([expected, found, in_step, one_device, predicted]))
"""


@pytest.mark.parametrize("devices", [1, 2])
def test_values_of_every_type_are_gathered_and_predicted(devices: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = launch("--workers", "2", "--", "program.py", str(devices), cwd=tmp_path, deadline_seconds=120)
    lines = [line.partition("RESULT ")[2] for line in ended.text.splitlines() if "RESULT " in line]
    assert ended.code == 0 and len(lines) == 2
    for line in lines:
        expected, found, in_step, one_device, predicted = json.loads(line)
        assert found == expected
        assert in_step == expected
        assert predicted == one_device


WITHOUT_IDS = """
import tfdist

strategy = tfdist.create_strategy("multi_worker_mirrored")
import tensorflow as tf

with strategy.scope():
    table = tf.Variable(tf.ones([4, 2]))


@tf.function
def step():
    def of_replica():
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.gather(table, tf.zeros([0], tf.int64)))
        gradient = tape.gradient(total, table)
        return tf.convert_to_tensor(tf.distribute.get_replica_context().all_reduce("sum", gradient))

    return strategy.run(of_replica)


print("RESULT", step().numpy().tolist())
"""


def test_a_gradient_of_an_embedding_without_ids_is_0(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WITHOUT_IDS)
    ended = launch("--workers", "2", "--", "program.py", cwd=tmp_path, deadline_seconds=120)
    assert ended.code == 0
    assert ended.text.count(f"RESULT {[[0.0, 0.0]] * 4}") == 2
