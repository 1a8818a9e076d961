"""Training on several devices leaves the arrays of a generator and of a PyDataset as they are."""

from __future__ import annotations

import pytest

PROGRAM = """
import sys
import numpy as np
from tfdist import create_strategy

strategy = create_strategy("mirrored", devices=2)
import tensorflow as tf

keras = tf.keras
keras.backend.set_floatx("float64")
kind = getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence
signature = (tf.TensorSpec((None, 8), tf.float64), tf.TensorSpec((None, 8), tf.float64))


def aligned(array):
    # TensorFlow shares the memory of arrays that begin at a multiple of 64 bytes.
    memory = np.empty(array.nbytes + 64, "uint8")
    start = -memory.ctypes.data % 64
    result = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


rng = np.random.default_rng(0)
x, y = aligned(rng.normal(size=(128, 8))), aligned(rng.normal(size=(128, 8)))
before = x.copy(), y.copy()


class Batches(kind):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return x[i * 16 : (i + 1) * 16], y[i * 16 : (i + 1) * 16]


def generator():
    data = Batches()
    return (data[i] for i in range(len(data)))


with strategy.scope():
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(8)])
    model.compile("sgd", "mse")
data = {
    "PyDataset": Batches,
    "from_generator": lambda: tf.data.Dataset.from_generator(generator, output_signature=signature),
}[sys.argv[1]]()
model.fit(data, epochs=3, verbose=0)
model.evaluate(data, verbose=0)
print("CHANGED", int((x != before[0]).sum()), int((y != before[1]).sum()))
"""


@pytest.mark.parametrize("data", ["PyDataset", "from_generator"])
def test_arrays_stay_as_they_are(children, data):
    assert "CHANGED 0 0" in children.run(PROGRAM, data).out
