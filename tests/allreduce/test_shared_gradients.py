"""Gradients that are accumulated on two replicas update a variable as on one device.

Keras's own test_gradient_accumulation (keras/src/backend/tensorflow/optimizer_distribute_test.py, Keras 3.15) gives two
replicas the same tensor object G in each of three steps, and expects that the variable changes by 2G, to
[[-1, 0], [-1, 0]]. With tfdist it changes by G, to [[0, 1], [1, 2]]. G is right:

- One device that runs the same steps changes the variable by the mean of three times G, which is G.
- TensorFlow counts a tensor object that all replicas share once, since it may be the sum already. Without accumulation
  each step therefore changes the variable by G, also on stock Keras: test_ema in the same file expects so.
- Stock Keras adds such a tensor to the accumulators of each replica, and sums the accumulators. It thus counts the
  tensor once for each replica, but only if it accumulates.

Gradients that each replica has computed are summed: two replicas with G and 2G do what one device does with 3G. tfdist
sums before it accumulates. Stock Keras has other accumulators on each replica, and saves those of the first replica.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.allreduce.programs.shared_gradients import BEFORE, GRADIENT, STEPS

# The change of the variable after each step, as multiples of the gradient.
CHANGES = {
    "own": [0] * (STEPS - 1) + [3],
    "shared": [0] * (STEPS - 1) + [1],
    "shared, update in each step": [1, 2, 3],
}


@pytest.fixture
def found(two_replicas):
    (found,) = two_replicas("shared_gradients")["all"]
    return found


def values(changes):
    return [(np.array(BEFORE) - times * np.array(GRADIENT)).tolist() for times in changes]


def test_gradients_of_each_replica_are_summed_as_one_device_sums_them(found):
    assert found["own"] == dict.fromkeys(["eager", "traced", "one device"], values(CHANGES["own"]))


@pytest.mark.parametrize("gradients", ["shared", "shared, update in each step"])
def test_a_tensor_that_replicas_share_counts_once_as_on_one_device(found, gradients):
    # With Keras 2 the program has no such gradients.
    if gradients in found:
        assert found[gradients] == dict.fromkeys(["eager", "traced", "one device"], values(CHANGES[gradients]))


def test_a_checkpoint_between_two_updates_keeps_the_gradients_of_all_replicas(found):
    if "restored" in found:
        assert [found["restored"]] == values([3])
