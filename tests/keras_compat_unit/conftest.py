from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf


@pytest.fixture(autouse=True)
def _tensorflow(four_cpus, no_surroundings):
    """Runs every test with four logical CPUs and without the environment variables of a cluster."""


@pytest.fixture
def float64() -> Iterator[None]:
    """Makes Keras compute in float64."""
    keras = tf.keras
    package = keras.mixed_precision
    before = keras.backend.floatx(), package.global_policy() if hasattr(package, "global_policy") else None
    keras.backend.set_floatx("float64")
    package.set_global_policy("float64")
    yield
    keras.backend.set_floatx(before[0])
    package.set_global_policy(before[1] or before[0])
