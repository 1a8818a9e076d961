"""Options that cannot be honoured are refused."""

from __future__ import annotations

import importlib
import re
import types
from typing import Any

import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.averaging import Staleness, StalenessCounts, staleness_of
from tfdist.averaging.soft_sync import Accumulators
from tfdist.cluster import ClusterConfig

CLUSTER = ClusterConfig(
    jobs={"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, task_type="chief", task_index=0
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "tau"}, "expected staleness.scale to be '1/tau', a function of tau, or None, received 'tau'."),
        ({"bound": -1}, "expected staleness.bound to be a whole number of at least 0, or None, received -1."),
        ({"bound": 1.5}, "expected staleness.bound to be a whole number of at least 0, or None, received 1.5."),
        ({"drop_above": -1}, "expected staleness.drop_above to be a whole number of at least 0, or None, received -1."),
        ({"soft_sync": 0}, "expected staleness.soft_sync to be a whole number of at least 1, or None, received 0."),
        (
            {"soft_sync": True},
            "expected staleness.soft_sync to be a whole number of at least 1, or None, received True.",
        ),
    ],
)
def test_values_of_the_wrong_kind_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Staleness(**options)


def test_more_gradients_than_workers_are_refused_before_the_cluster_starts() -> None:
    message = "expected staleness.soft_sync to be at most the number of workers, 2, received 3."
    with pytest.raises(ValueError, match=re.escape(message)):
        create_strategy("parameter_server", cluster=CLUSTER, staleness=Staleness(soft_sync=3))


@pytest.mark.parametrize(("bound", "kept"), [(None, []), (0, [0]), (2, [2])])
def test_the_bound_reaches_the_coordinator_of_the_strategy(
    monkeypatch: pytest.MonkeyPatch, bound: int | None, kept: list[int]
) -> None:
    module = importlib.import_module("tfdist.strategies.parameter_server")
    strategy, found = types.SimpleNamespace(), []
    monkeypatch.setattr(module, "start_coordinator", lambda *_, **__: strategy)
    monkeypatch.setattr(module, "keep_bound", lambda one, steps: found.append((one, steps)))
    for name in ("_prepare_once", "VersionedUpdates"):
        monkeypatch.setattr(module, name, lambda *_: None)
    assert create_strategy("parameter_server", cluster=CLUSTER, staleness=Staleness(bound=bound)) is strategy
    assert found == [(strategy, steps) for steps in kept]


def test_other_values_than_staleness_are_refused() -> None:
    message = "expected staleness to be a tfdist.averaging.Staleness or None, received dict."
    with pytest.raises(ValueError, match=re.escape(message)):
        create_strategy("parameter_server", cluster=CLUSTER, staleness={"bound": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["auto", "one_device", "mirrored", "multi_worker_mirrored", "central_storage", "tpu"])
def test_other_strategies_refuse_staleness(name: str, no_surroundings: None) -> None:
    with pytest.raises(ValueError, match=r"expected no staleness for the strategy .*; only parameter_server takes it"):
        create_strategy(name, staleness=Staleness())


def test_without_staleness_there_is_nothing_to_read(no_surroundings: None) -> None:
    with pytest.raises(
        ValueError, match=r"expected a strategy that was made with staleness=tfdist\.averaging.Staleness"
    ):
        staleness_of(object())


def test_counts_are_told_in_one_line_and_can_be_subtracted() -> None:
    earlier = StalenessCounts(updates=1, applied=2, dropped=0, waiting=1, histogram=(3, 0, 0))
    later = StalenessCounts(updates=3, applied=6, dropped=2, waiting=0, histogram=(5, 1, 2))
    since = later.since(earlier)
    assert since == StalenessCounts(updates=2, applied=4, dropped=2, waiting=0, histogram=(2, 1, 2))
    assert (since.gradients, since.mean, since.largest) == (5, 1.0, 2)
    assert StalenessCounts(updates=0, applied=0, dropped=0, waiting=0, histogram=(0, 0)).mean == 0.0
    assert (
        earlier.line()
        == "staleness: 3 gradients, 2 applied in 1 updates, 0 dropped, 1 waiting; mean 0.00, largest 0; 0: 3"
    )


def test_soft_sync_refuses_steps_with_gradients_for_other_variables() -> None:
    variables = [tf.Variable(1.0), tf.Variable(2.0)]
    accumulators = Accumulators(2)
    accumulators.prepare(tf.distribute.get_strategy(), variables)

    def add(gradients: list[Any]) -> Any:
        waiting, updates = tf.zeros([], tf.int64), tf.ones([], tf.int64)
        return accumulators.add(gradients, variables, None, waiting=waiting, update=lambda means, factor: updates)

    add([tf.constant(1.0), None])
    add([tf.constant(3.0), None])
    with pytest.raises(ValueError, match="expected gradients for the same variables in all steps of an optimizer with"):
        add([None, tf.constant(1.0)])
