"""Arrays of two workers count as the same if they hold the same rows in the same order, whatever they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_compat.data.arrays_of_workers import are_alike, fingerprint

RANDOM = np.random.default_rng(2)
IMAGES = RANDOM.random(size=(200, 8, 8)).astype("float32")
WITH_NAN = np.where(IMAGES < 0.1, np.nan, IMAGES)
WORDS = np.array([f"word {number}" for number in range(40)], object)


def same(first: Any, second: Any) -> bool:
    return are_alike(fingerprint(first), fingerprint(second))


@pytest.mark.parametrize(
    "data",
    [
        IMAGES,
        WITH_NAN,
        IMAGES.astype("float64") + 1e5,
        IMAGES.astype("complex64"),
        np.arange(50),
        np.arange(50) % 2 == 0,
        WORDS,
        WORDS.astype("U"),
    ],
    ids=lambda data: f"{type(data).__name__} {data.dtype}",
)
@pytest.mark.parametrize("make", [np.copy, tf.constant])
def test_copies_are_alike_and_rows_in_another_order_are_not(make: Any, data: Any) -> None:
    if make is tf.constant and data.dtype.kind == "U":
        pytest.skip("tf.constant makes bytes of objects only")
    data, other = make(data), make(data[::-1])
    assert same(data, make(data))
    assert not same(data, other)
    assert not same({"a": data, "b": np.arange(3)}, {"a": other, "b": np.arange(3)})


def test_roundings_of_other_processors_are_alike() -> None:
    assert same(IMAGES, IMAGES * (1 + RANDOM.normal(size=IMAGES.shape).astype("float32") * 1e-7))
    assert not same(IMAGES, IMAGES * np.float32(1.01))


def test_shapes_types_and_missing_weights_count() -> None:
    assert not same(IMAGES, IMAGES[:-1])
    assert not same(np.arange(8), np.arange(8.0))
    assert not same((IMAGES, None), (IMAGES, IMAGES[:, 0, 0]))
    assert same((IMAGES, None), (IMAGES, None))


def test_arrays_without_rows_and_data_that_is_no_array_are_alike() -> None:
    for data in (np.zeros([0, 3]), [], None, tf.sparse.from_dense([[1.0]]), iter([1])):
        assert same(data, data)
