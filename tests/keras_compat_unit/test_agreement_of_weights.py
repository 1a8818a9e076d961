"""The sums of weights that workers compare tell other values from other roundings, and name the variables."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_compat.agreement.weights import _PIECE, differences_of_weights, sums_of, weights_of

THREE = ["worker 0", "worker 1", "worker 2"]
START = "expected the same training on all workers, received: "
DO = "; load or set the weights on every worker, not only on one."


def entry(values, *, name="kernel (2, 3)", trained=True, dtype="float32"):
    ((sums, unfinite),) = sums_of([tf.Variable(np.asarray(values), dtype=dtype)])
    return [name, trained, dtype, int(np.size(values)), sums, unfinite]


def message(*values, dtype="float32"):
    found = [json.loads(json.dumps([entry(value, dtype=dtype)])) for value in values]
    return differences_of_weights(THREE[: len(values)], found)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (8,), (5, 3), (3, _PIECE // 2 + 1)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_other_values_are_told_from_other_roundings(shape, dtype):
    values = drawn(*shape)
    assert message(values, values * (1 + 1e-4), dtype=dtype) == ""
    assert message(values, values + 0.5 * drawn(*shape, seed=1), dtype=dtype) != ""


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values[::-1],
        lambda values: -values,
        np.zeros_like,
        lambda values: values * 1.01,
        lambda values: np.where(np.arange(len(values)) == 5, 9.0, values),
    ],
    ids=["order", "sign", "zeros", "scale", "one value"],
)
def test_each_kind_of_change_is_seen(change):
    values = drawn(10_000)
    assert message(values, change(values)) != ""


def test_the_length_of_the_sums_is_about_that_of_the_values():
    values = drawn(10_000, 16)
    lengths = [np.linalg.norm(entry(row)[4]) / np.linalg.norm(row) for row in values.T]
    assert np.sqrt(np.mean(np.square(lengths))) == pytest.approx(1, rel=0.3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_values_that_are_not_finite_are_counted(dtype):
    values = drawn(100)
    broken = np.where(np.arange(100) % 7, values, np.nan)
    assert message(broken, broken, dtype=dtype) == ""
    assert message(values, broken, dtype=dtype) != ""
    assert message(broken, np.where(np.arange(100) % 6, values, np.inf), dtype=dtype) != ""


def test_values_that_a_sum_of_float32_cannot_hold_are_compared():
    values = np.full([64], 3e38)
    assert entry(values)[5] == 0
    assert message(values, values) == ""
    assert message(values, values / 1e10) != ""


def test_values_close_to_zero_and_variables_without_values_are_alike():
    assert message(np.full([10], 1e-9), np.full([10], -1e-9)) == ""
    assert message(np.zeros([0, 3]), np.zeros([0, 3])) == ""
    assert sums_of([]) == []


def test_the_first_variable_and_all_workers_that_differ_from_the_first_are_named():
    one, other = drawn(6), drawn(6, seed=1)
    assert message(one, one, other) == (
        f"{START}worker 2 has other values of the variable kernel (2, 3) than worker 0{DO}"
    )
    assert message(one, other, other) == (
        f"{START}worker 1 and worker 2 have other values of the variable kernel (2, 3) than worker 0{DO}"
    )


@pytest.mark.parametrize(("count", "more"), [(2, " and of 1 more variable"), (4, " and of 3 more variables")])
def test_further_variables_are_counted(count, more):
    found = [[entry(drawn(6, seed=seed), name=f"v{i} (6,)") for i in range(count)] for seed in (0, 1)]
    assert differences_of_weights(THREE[:2], found) == (
        f"{START}worker 1 has other values of the variable v0 (6,){more} than worker 0{DO}"
    )


def test_models_with_other_variables_are_left_to_the_comparison_of_shapes():
    assert differences_of_weights(THREE[:2], [[entry(drawn(6))], []]) == ""
    assert differences_of_weights(THREE[:2], [[entry(drawn(6))], [entry(-drawn(6), name="bias (6,)")]]) == ""


def test_adapted_layers_are_a_line_of_the_log(caplog):
    found = [[entry(drawn(6, seed=seed), name="mean (6,)", trained=False)] for seed in (0, 1)]
    with caplog.at_level("WARNING", "tfdist"):
        assert differences_of_weights(THREE[:2], found) == ""
    assert "worker 1 has other values of the variable mean (6,) than worker 0; call adapt" in caplog.text


def test_what_is_compared_of_a_model():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        normalization = tf.keras.layers.Normalization()
        normalization.build((None, 2))
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((2,)),
                normalization,
                tf.keras.layers.Dense(3, trainable=False, name="frozen"),
                tf.keras.layers.BatchNormalization(),
                tf.keras.layers.Dense(1, use_bias=False, name="last"),
            ]
        )
    found = [(name.split(" ")[0].split("/")[-1], trained) for name, trained, *_ in weights_of(model)]
    assert sorted(found) == [
        ("beta", True),
        ("bias", True),
        ("gamma", True),
        ("kernel", True),
        ("kernel", True),
        ("mean", False),
        ("variance", False),
    ]


def test_nothing_is_compared_of_a_model_without_variables_or_without_a_strategy():
    assert weights_of(tf.keras.Sequential([tf.keras.layers.Dense(1)])) == []
    assert weights_of(tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])) == []
