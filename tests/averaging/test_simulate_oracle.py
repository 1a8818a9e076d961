"""The simulator's local SGD gives the numbers of the computation with which LocalSGD is compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.averaging import oracle
from tfdist.averaging import simulate

STEPS, WORKERS = 50, 4


@pytest.mark.parametrize(
    ("rule", "options", "expected"),
    [
        (simulate.Average(), {}, {"outer": "average"}),
        (simulate.Average(), {"start_step": 9}, {"outer": "average", "start_step": 9}),
        (simulate.Average(), {"average_slots": False}, {"outer": "average", "average_slots": False}),
        (
            simulate.BlockMomentum(rate=0.9, momentum=0.4),
            {},
            {"outer": "block_momentum", "outer_rate": 0.9, "outer_momentum": 0.4},
        ),
        (
            simulate.Nesterov(rate=0.7, momentum=0.9),
            {"start_step": 7},
            {"outer": "nesterov", "outer_rate": 0.7, "outer_momentum": 0.9, "start_step": 7},
        ),
        (
            simulate.ElasticAverage(rate=0.2),
            {"average_slots": False},
            {"outer": "elastic", "outer_rate": 0.2, "average_slots": False},
        ),
    ],
)
def test_the_simulator_gives_the_numbers_of_the_oracle(
    rule: Any, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    def gradient(worker: int, step: int, weights: Any) -> tuple[list[np.ndarray], int]:
        x, y = oracle.rows_of(worker, step)
        return oracle.gradient(list(weights), x, y), len(x)

    found = simulate.local_sgd(
        gradient,
        oracle.first_weights(),
        workers=WORKERS,
        steps=STEPS,
        optimizer=simulate.SGD(0.05, momentum=0.75),
        rounds=simulate.Rounds(every=4, outer=rule, **options),
    )
    wanted = oracle.train(WORKERS, STEPS, every=lambda step: 4, momentum=0.75, **expected)
    for array, values in zip(found.weights, zip(*wanted.own, strict=True), strict=True):
        np.testing.assert_allclose(array, values, rtol=0, atol=1e-12)
    for array, values in zip(found.seen[-1], wanted.seen, strict=True):
        np.testing.assert_allclose(array, values, rtol=0, atol=1e-12)
