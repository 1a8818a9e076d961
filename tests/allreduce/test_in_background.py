"""Sums in the background: the collectives that an exchange makes one after another."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tensorflow as tf

import tfdist
from tfdist.allreduce import BF16, Compression, ErrorFeedback, Exchanged, PowerSGD, Threshold, TopK
from tfdist.allreduce.in_background import collectives_of

SHAPES = [(40, 30), (50, 20)]


@pytest.fixture
def strategy(four_cpus: None, no_surroundings: None) -> tf.distribute.Strategy:
    return tfdist.create_strategy("mirrored", devices=3)


@pytest.mark.parametrize(
    ("compression", "expected"),
    [
        (BF16(), [[(2200,)]]),
        # The values and places of 300 and 250 elements of each of three replicas, and a last pair.
        (TopK(0.25), [[(3 * 551, 2)]]),
        # The density of a warmup is known when the step runs.
        (TopK(0.01, warmup_steps=5), [[(None, 2)]]),
        (ErrorFeedback(PowerSGD(2)), [[(180,)], [(100,)]]),
        # The number of elements of each replica, and the elements.
        (Threshold(0.5), [[(3,)], [(None,)]]),
    ],
)
def test_collectives_are_found_before_the_first_step(strategy: Any, compression: Compression, expected: list) -> None:
    found = collectives_of(compression, SHAPES, strategy, 1 << 20)
    assert [[tuple(one.shape) for one in specs] for specs in found] == expected


# The last gradient is known first, and is in the first pack.
def test_packs_are_collectives_of_the_same_time(strategy: Any) -> None:
    found = collectives_of(PowerSGD(2), SHAPES, strategy, 400)
    assert [[tuple(one.shape) for one in specs] for specs in found] == [[(100,), (80,)], [(40,), (60,)]]


@dataclasses.dataclass(frozen=True)
class SendsAfterUnknown(Compression):
    """Gathers the elements above 1, and then sums something."""

    def takes(self, shape: tuple[int, ...]) -> bool:
        return True

    def ratio(self, shape: tuple[int, ...]) -> float:
        return 1.0

    def exchange(self, gradients: Any, state: Any, streams: Any, *, scale: Any = 1.0) -> Exchanged:
        large = streams.all_gather(tf.boolean_mask(gradients[0], gradients[0] > 1))
        return Exchanged(totals=streams.all_reduce([tf.reduce_sum(large) * gradients[0]]), residuals=[])


def test_a_collective_after_one_of_unknown_shape_is_refused(strategy: Any) -> None:
    with pytest.raises(
        ValueError, match="expected a compression of which all collectives but the last have known shap"
    ):
        collectives_of(SendsAfterUnknown(), [(5,)], strategy, 1 << 20)
