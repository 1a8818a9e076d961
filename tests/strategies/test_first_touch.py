from __future__ import annotations

import sys
import types

import pytest
import tensorflow as tf

from tfdist.keras_compat.version import keras
from tfdist.strategies.first_touch import explain_late_start, find_tensorflow_objects


class Unwilling:
    @property
    def __class__(self):
        raise RuntimeError("this class must not be read")


@pytest.fixture
def program(monkeypatch, tmp_path):
    """Adds a module of the user and a library module. Only the library module holds a tensor."""
    for name, file in (("user_program", tmp_path / "user_program.py"), ("library", "/x/site-packages/library.py")):
        module = types.ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)
        module.in_library = tf.constant(1)
    del sys.modules["user_program"].in_library
    return sys.modules["user_program"]


def found():
    return [line for line in find_tensorflow_objects() if "user_program" in line or "library" in line]


def test_each_kind_of_tensorflow_object_is_named(program):
    layers = keras().layers
    program.kind = tf.Variable
    program.number = 3
    program.unwilling = Unwilling()
    program.variable = tf.Variable(1.0)
    program.tensor = tf.constant(1.0)
    program.dataset = tf.data.Dataset.range(3)
    program.model = keras().Sequential([layers.Input((2,)), layers.Dense(1)])
    program.layer = layers.Dense(1)
    program.optimizer = keras().optimizers.SGD()
    program.metric = keras().metrics.Mean()
    assert found() == [
        "the variable `variable` in user_program",
        "the tensor `tensor` in user_program",
        "the dataset `dataset` in user_program",
        "the model `model` in user_program",
        "the layer `layer` in user_program",
        "the optimizer `optimizer` in user_program",
        "the metric `metric` in user_program",
    ]


def test_without_any_object_the_explanation_says_that_no_module_holds_the_result(program, monkeypatch):
    monkeypatch.setattr("tfdist.strategies.first_touch.find_tensorflow_objects", list)
    assert explain_late_start(RuntimeError("too late")) == (
        "TensorFlow was started by: an operation, a variable or a device query whose result no module holds any "
        "more; make the strategy earlier, before any tensor, variable, dataset or model is made (TensorFlow said: "
        "too late)"
    )


def test_only_the_first_three_objects_are_named(monkeypatch):
    monkeypatch.setattr("tfdist.strategies.first_touch.find_tensorflow_objects", lambda: list("abcde"))
    assert explain_late_start(RuntimeError()).startswith("TensorFlow was started by: a, b, c and 2 more; make")
