"""A training that goes on with another number of replicas, after another algorithm, or in a fit made otherwise."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.averaging import test_gossip_options as gossip
from tests.averaging.test_seen_and_resumed import RULES, data, fit, make
from tests.averaging.test_weights_set import same, weights_of
from tests.checkpoint.fits.interrupted import Interrupt, InterruptionError
from tests.processes import ROOT, run
from tfdist.averaging import DPSGD
from tfdist.checkpoint import AutoResume

keras = tf.keras


def trained(folder: Path, devices: int, order: str, **options: Any) -> tuple[list[Any], list[Any]]:
    """Returns the weights that are seen after a training with AutoResume, and those of each replica."""
    command = [sys.executable, "-m", "tests.averaging.programs.resumed", str(folder), str(devices)]
    ended = run([*command, json.dumps(options), order], cwd=ROOT, deadline_seconds=120.0)
    found = dict(line.split(" ", 1) for line in ended.text.splitlines() if line.startswith(("SEEN", "OWN")))
    assert len(found) == 2, ended.text
    return json.loads(found["SEEN"]), json.loads(found["OWN"])


@pytest.mark.parametrize("devices", [4, pytest.param(1, marks=pytest.mark.full)])
def test_a_finished_training_with_overlap_shows_its_weights_on_another_number_of_replicas(
    tmp_path: Path, devices: int
) -> None:
    # The replicas have met after the last of six steps.
    options = {"every": 6, "overlap": True, "average": ["weights"]}
    expected, _ = trained(tmp_path / "snapshots", 2, "after", **options)
    seen, _ = trained(tmp_path / "snapshots", devices, "after", **options)
    for one, other in zip(seen, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_a_finished_training_shows_its_weights_if_auto_resume_was_made_before_local_sgd(tmp_path: Path) -> None:
    expected = trained(tmp_path / "snapshots", 2, "before", every=4)
    assert expected[1][0] != expected[1][1]
    assert trained(tmp_path / "snapshots", 2, "before", every=4) == expected


def test_choco_goes_on_from_the_mean_after_d_psgd(strategy: Any, tmp_path: Path) -> None:
    with pytest.raises(InterruptionError):
        gossip.fit(gossip.make(strategy, DPSGD), Interrupt(train=7), AutoResume(str(tmp_path), every_steps=2))
    model = gossip.make(strategy, gossip.choco)
    gossip.fit(model, AutoResume(str(tmp_path), every_steps=2))
    gossip.estimates_are_those_of_the_peers(model, [1])


@pytest.mark.full
def test_choco_goes_on_from_the_mean_with_other_peers(tmp_path: Path, four_cpus: None, no_surroundings: None) -> None:
    strategy = tfdist.create_strategy("mirrored", devices=4)
    with pytest.raises(InterruptionError):
        gossip.fit(gossip.make(strategy, gossip.choco), Interrupt(train=7), AutoResume(str(tmp_path), every_steps=2))
    model = gossip.make(strategy, gossip.choco, mixing="exponential")
    gossip.fit(model, AutoResume(str(tmp_path), every_steps=2))
    gossip.estimates_are_those_of_the_peers(model, [1, 2])


def test_replicas_count_as_before_after_a_part_of_the_weights_was_set(strategy: Any) -> None:
    model = make(strategy, every=1000)
    fit(model, epochs=1)
    hook = model.optimizer._tfdist_hook
    shown = weights_of(model)
    last = model.layers[-1]
    last.set_weights([np.ones_like(one) for one in last.get_weights()])
    rows = [int(one) for one in hook._rows.local_values()]
    assert all(rows)
    with hook.own():
        pass
    assert [int(one) for one in hook._rows.local_values()] == rows
    same(weights_of(model)[:2], shown[:2])
    same(last.get_weights(), [np.ones_like(one) for one in shown[-2:]])


def test_what_is_shown_waits_for_the_sums_on_the_way(strategy: Any) -> None:
    model = make(strategy, **RULES["overlap"])
    fit(model, epochs=1)
    meeting, waits = model.optimizer._tfdist_hook.meeting, []
    object.__setattr__(meeting, "settle", waits.append)
    model.train_on_batch(*(one[:16] for one in data()))
    assert not waits
    model.evaluate(*data(), verbose=0)
    assert waits == [strategy]
