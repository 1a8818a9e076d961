"""The processes and strategies of the interrupted fits."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfdist
from tfdist.keras_compat import keras_in_use

keras = tf.keras


@pytest.fixture(autouse=True)
def four_devices(four_cpus, no_surroundings):
    """Every test here runs in a process whose TensorFlow has four logical CPUs, and that knows of no cluster."""


@pytest.fixture(autouse=True)
def random_states_that_can_be_read():
    if not keras_in_use().is_keras3:
        keras.backend.experimental.enable_tf_random_generator()


@pytest.fixture(params=[pytest.param("one_device", marks=pytest.mark.full), "mirrored"])
def strategy(request):
    return tfdist.create_strategy(request.param, **({"devices": 2} if request.param == "mirrored" else {}))
