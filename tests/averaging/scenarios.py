"""Scenarios of staleness: options, optimizer and order of events, and the same in the simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.averaging.event_simulation import Adam, Sgd
from tfdist.averaging import Staleness

WORKERS = 3

# Keras rounds momentum and betas to float32: these numbers are exact in float32.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """Options of a training, and what the simulation takes for them."""

    staleness: Staleness
    optimizer: Callable[[], Any]
    simulated_optimizer: Callable[[], Any]
    simulated: dict[str, Any]
    seed: int
    steps: int = 50


def inverse(tau: int) -> float:
    return 1 / tau if tau else 1.0


def _power(tau: Any) -> Any:
    return tf.cast(tau + 1, tf.float64) ** -0.5


SCENARIOS = {
    "counts only": Scenario(
        staleness=Staleness(scale=None),
        optimizer=lambda: tf.keras.optimizers.SGD(0.05),
        simulated_optimizer=lambda: Sgd(0.05),
        simulated={},
        seed=0,
    ),
    "1/tau, momentum": Scenario(
        staleness=Staleness(),
        optimizer=lambda: tf.keras.optimizers.SGD(0.05, momentum=0.5),
        simulated_optimizer=lambda: Sgd(0.05, momentum=0.5),
        simulated={"scale": inverse},
        seed=1,
    ),
    "1/tau, Adam": Scenario(
        staleness=Staleness(),
        optimizer=lambda: tf.keras.optimizers.Adam(0.05, beta_1=0.5, beta_2=0.75),
        simulated_optimizer=lambda: Adam(0.05, beta_1=0.5, beta_2=0.75),
        simulated={"scale": inverse},
        seed=2,
    ),
    "a function, dropping": Scenario(
        staleness=Staleness(scale=_power, drop_above=2),
        optimizer=lambda: tf.keras.optimizers.Adam(0.05, beta_1=0.5, beta_2=0.75),
        simulated_optimizer=lambda: Adam(0.05, beta_1=0.5, beta_2=0.75),
        simulated={"scale": lambda tau: (tau + 1) ** -0.5, "drop_above": 2},
        seed=3,
    ),
    "drops all but fresh": Scenario(
        staleness=Staleness(drop_above=0),
        optimizer=lambda: tf.keras.optimizers.SGD(0.05),
        simulated_optimizer=lambda: Sgd(0.05),
        simulated={"drop_above": 0},
        seed=4,
    ),
    "soft_sync, momentum": Scenario(
        staleness=Staleness(scale=None, soft_sync=3),
        optimizer=lambda: tf.keras.optimizers.SGD(0.05, momentum=0.5),
        simulated_optimizer=lambda: Sgd(0.05, momentum=0.5),
        simulated={"soft_sync": 3},
        seed=5,
    ),
    "soft_sync, 1/tau, Adam, dropping": Scenario(
        staleness=Staleness(soft_sync=2, drop_above=1),
        optimizer=lambda: tf.keras.optimizers.Adam(0.05, beta_1=0.5, beta_2=0.75),
        simulated_optimizer=lambda: Adam(0.05, beta_1=0.5, beta_2=0.75),
        simulated={"scale": inverse, "soft_sync": 2, "drop_above": 1},
        seed=6,
    ),
    # The last one, because the bound of a coordinator is there to stay.
    "bound": Scenario(
        staleness=Staleness(bound=2),
        optimizer=lambda: tf.keras.optimizers.SGD(0.05, momentum=0.5),
        simulated_optimizer=lambda: Sgd(0.05, momentum=0.5),
        simulated={"scale": inverse},
        seed=11,
    ),
}
