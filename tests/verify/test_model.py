"""tfdist.verify(model_fn, data): its options, its data, and its result for a model."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import numpy as np
import pytest

import tfdist
from tfdist.verify.data import first_rows

X = np.random.default_rng(0).normal(size=(20, 4))
Y = X.sum(axis=1, keepdims=True)
QUICK: dict[str, Any] = {"replicas": [2], "workers": 0, "steps": 2, "verbose": False}


def make_model() -> Any:
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model


def make_model_with_dropout() -> Any:
    import tensorflow as tf

    layers = [tf.keras.layers.Input((4,)), tf.keras.layers.Dropout(0.5, name="half"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.compile(optimizer="sgd", loss="mse")
    return model


def make_model_without_compile() -> Any:
    import tensorflow as tf

    return tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])


def make_dataset() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


def test_the_package_can_be_called_and_imported() -> None:
    from tfdist.verify import verify

    assert callable(tfdist.verify) and inspect.ismodule(tfdist.verify)
    assert inspect.signature(tfdist.verify) == inspect.signature(verify)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model_fn": None}, "expected model_fn to be a function that returns a compiled model, received None"),
        ({"steps": 0}, "expected steps to be at least 1, received 0."),
        ({"global_batch_size": 0}, "expected global_batch_size to be at least 1, received 0."),
        ({"replicas": [1]}, "expected each number of replicas to be at least 2, received 1."),
        ({"data": "mnist"}, "expected data of arrays, or a function that returns a tf.data.Dataset, received str."),
        ({"data": (X, Y[:5])}, "expected arrays with the same number of rows, received 5 and 20 rows."),
        ({"data": (X[:0], Y[:0])}, "expected arrays with the same number of rows, received 0 rows."),
        (
            {"data": make_dataset, "global_batch_size": 8},
            "expected no global_batch_size with a function that returns batches, received 8",
        ),
        ({"data": threading.Lock}, "expected the data function to return a tf.data.Dataset, received lock."),
        ({"model_fn": make_model_without_compile}, "received a model that is not compiled"),
    ],
)
def test_wrong_input_is_refused(given: dict[str, Any], message: str) -> None:
    options = {"model_fn": make_model, "data": (X, Y), **QUICK, **given}
    with pytest.raises(ValueError, match="expected") as raised:
        tfdist.verify(**options)
    assert message in str(raised.value)


def test_functions_that_cannot_be_pickled_are_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"expected model_fn and data to be picklable, .*lock"):
        tfdist.verify(lambda: lock, (X, Y))


def test_the_rows_of_all_arrays_are_cut_and_lists_become_tuples() -> None:
    inputs, y = first_rows(([X, {"a": X}], Y, None), 3)
    assert isinstance(inputs, tuple)
    assert [len(array) for array in (inputs[0], inputs[1]["a"], y)] == [3, 3, 3]


@pytest.mark.full
def test_a_model_that_differs_makes_a_false_report_that_names_the_cause(capsys: pytest.CaptureFixture) -> None:
    report = tfdist.verify(make_model_with_dropout, (X, Y), global_batch_size=8, **{**QUICK, "verbose": True})
    (verdict,) = report.verdicts
    assert not report and [cause.name for cause in verdict.causes] == ["random layers"]
    assert "half (Dropout)" in capsys.readouterr().out


@pytest.mark.full
def test_a_model_is_trained_on_a_dataset_on_replicas_and_workers() -> None:
    report = tfdist.verify(make_model, make_dataset, steps=5, verbose=False)
    assert report.is_equal and report.steps == 5
    assert [verdict.topology for verdict in report.verdicts] == ["2 replicas", "4 replicas", "2 workers"]


@pytest.mark.full
def test_a_model_that_cannot_be_trained_raises() -> None:
    with pytest.raises(RuntimeError, match="the model cannot be trained on one device: ValueError"):
        tfdist.verify(make_model, (X[:, :3], Y), **QUICK)
