"""A model with convolutions trains as on one device even if a replica has no rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.processes import launch
from tfdist.keras_compat.layers import convolution_of_no_rows

PROGRAM = """
import json, sys
import numpy as np
import tfdist

strategy = tfdist.create_strategy(sys.argv[1], **({"devices": int(sys.argv[2])} if sys.argv[2] != "1" else {}))
import tensorflow as tf

layers = tf.keras.layers
rng = np.random.default_rng(0)
# The last batch has one row, so the second replica has no rows.
x, y = rng.normal(size=(21, 8, 8, 2)).astype("float32"), rng.normal(size=(21, 1)).astype("float32")
with strategy.scope():
    tf.keras.utils.set_random_seed(0)
    inputs = layers.Input((8, 8, 2))
    image = layers.BatchNormalization(synchronized=True)(layers.Conv2D(3, 3, activation="relu")(inputs))
    image = layers.SeparableConv2D(4, 3)(layers.DepthwiseConv2D(2)(image))
    image = layers.Conv2DTranspose(5, 2, strides=2)(image)
    line = layers.Reshape((64, 2))(inputs)
    line = layers.Conv1D(3, 2, padding="causal")(line)
    line = layers.SeparableConv1D(4, 3)(layers.DepthwiseConv1D(3)(line))
    line = layers.Conv1DTranspose(2, 3)(line)
    block = layers.Reshape((4, 4, 4, 2))(inputs)
    block = layers.Conv3DTranspose(2, 2)(layers.Conv3D(3, 2)(block))
    both = layers.Concatenate()([layers.Flatten()(one) for one in (image, line, block)])
    model = tf.keras.Model(inputs, layers.Dense(1)(both))
    model.compile(tf.keras.optimizers.SGD(0.01), "mse")
model.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0)
weights = [np.asarray(one, "float64").ravel().tolist() for one in model.get_weights()]
print("RESULT", json.dumps([weights, model.predict(x[:1], verbose=0).ravel().tolist()]))
"""


def result(children, *arguments):
    finished = children.run(PROGRAM, *arguments)
    assert "RESULT " in finished.out, finished.err
    return json.loads(finished.out.split("RESULT ")[1])


@pytest.mark.parametrize("name", ["mirrored", pytest.param("central_storage", marks=pytest.mark.full)])
def test_training_with_a_replica_without_rows_equals_one_device(name, children):
    (expected, answer), (found, again) = (result(children, *one) for one in (("one_device", "1"), (name, "2")))
    for one, other in zip(expected, found, strict=True):
        assert np.allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.allclose(answer, again, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_training_with_a_worker_without_rows_equals_one_device(children, tmp_path):
    expected, answer = result(children, "one_device", "1")
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = ("--workers", "2", "--", "program.py", "multi_worker_mirrored", "1")
    ended = launch(*arguments, cwd=tmp_path, deadline_seconds=150)
    said = [json.loads(line.split("RESULT ")[1]) for line in ended.text.splitlines() if "RESULT " in line]
    assert len(said) == 2
    for found, again in said:
        for one, other in zip(expected, found, strict=True):
            assert np.allclose(one, other, rtol=1e-5, atol=1e-6)
        assert np.allclose(answer, again, rtol=1e-5, atol=1e-6)


def test_the_mend_does_not_act_on_one_replica():
    import tensorflow as tf

    assert not convolution_of_no_rows._may_be_empty(tf.zeros([0, 8, 8, 2]))
