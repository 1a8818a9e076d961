"""DPSGD and ChocoSGD against the simulator: 50 steps in float64, with uneven and empty batches."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import tfdist
from tests.averaging import gossip_oracle, program
from tests.averaging.test_local_sgd import DEADLINE_SECONDS, check
from tests.native import build
from tests.processes import ROOT, launch
from tfdist.averaging import Mixing

FULL = pytest.mark.full
ALONE = Mixing(2, (((0, 0.75), (1, 0.25)),))

CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "ring": ({"algorithm": "DPSGD"}, None),
    "exponential, momentum": ({"algorithm": "DPSGD", "mixing": "exponential", "momentum": 0.75}, None),
    "one peer, momentum": ({"algorithm": "DPSGD", "mixing": "one_peer_exponential", "momentum": 0.75}, None),
    "complete": ({"algorithm": "DPSGD", "mixing": "complete"}, None),
    "topk": (
        {"algorithm": "ChocoSGD", "compression": "topk of all", "consensus_rate": 0.4, "momentum": 0.5},
        gossip_oracle.top_k,
    ),
    "topk, exponential": (
        {"algorithm": "ChocoSGD", "compression": "topk of all", "consensus_rate": 0.25, "mixing": "exponential"},
        gossip_oracle.top_k,
    ),
    "fp16": ({"algorithm": "ChocoSGD", "compression": "fp16", "consensus_rate": 1.0}, gossip_oracle.fp16),
    "threshold": (
        {"algorithm": "ChocoSGD", "compression": "threshold of all", "consensus_rate": 0.5},
        gossip_oracle.threshold,
    ),
    # All arrays are below the smallest that topk compresses.
    "topk of none": (
        {"algorithm": "ChocoSGD", "compression": "topk:0.01", "consensus_rate": 0.5},
        lambda difference: difference,
    ),
}


def cells(core: list[tuple[str, int]], replicas: tuple[int, ...]) -> list[Any]:
    """Returns the pairs of a case and a number of replicas; those that are not in the core are marked."""
    pairs = [(name, count) for name in CASES for count in replicas]
    return [pair if pair in core else pytest.param(*pair, marks=FULL) for pair in pairs]


@pytest.mark.parametrize(("name", "replicas"), cells([("one peer, momentum", 3), ("topk", 3)], (1, 2, 3, 4)))
def test_fit_gives_what_the_simulator_computes(
    four_cpus: None, no_surroundings: None, name: str, replicas: int
) -> None:
    given, compress = CASES[name]
    strategy = tfdist.create_strategy("mirrored", devices=replicas)
    check(program.train(strategy, **given), gossip_oracle.trained(replicas, given, compress=compress))


@FULL
@pytest.mark.parametrize("name", ["exponential, momentum", "topk"])
def test_a_loop_of_ones_own_gives_what_the_simulator_computes(strategy: Any, name: str) -> None:
    given, compress = CASES[name]
    found = program.train(strategy, loop="own", **given)
    check(found, gossip_oracle.trained(2, given, is_loop=True, compress=compress))


@FULL
def test_uneven_weights_of_a_mixing_are_kept_apart(strategy: Any) -> None:
    for algorithm, compress in (("DPSGD", None), ("ChocoSGD", gossip_oracle.top_k)):
        given: dict[str, Any] = {"algorithm": algorithm, "mixing": ALONE}
        if compress:
            given |= {"compression": "topk of all", "consensus_rate": 0.5}
        check(program.train(strategy, **given), gossip_oracle.trained(2, given, compress=compress))


@FULL
@pytest.mark.parametrize(
    ("workers", "devices", "name"),
    [
        *[(2, 1, name) for name in CASES],
        *[(2, 2, name) for name in ("ring", "one peer, momentum", "topk", "threshold")],
        *[(3, 1, name) for name in ("exponential, momentum", "one peer, momentum", "topk", "threshold")],
    ],
)
@pytest.mark.parametrize("transport", ["native", "tensorflow"])
def test_workers_give_what_the_simulator_computes(
    tmp_path: Path, workers: int, devices: int, name: str, transport: str
) -> None:
    given, compress = CASES[name]
    options = {**given, "transport": transport}
    found, text = on_workers(tmp_path, workers, {**options, "devices": devices})
    expected = gossip_oracle.trained(workers * devices, given, compress=compress)
    for worker, result in enumerate(found):
        replicas = slice(worker * devices, (worker + 1) * devices)
        check(result, dataclasses.replace(expected, own=expected.own[replicas]))
    assert ("because the strategy does not have the native transport" in text) == (transport == "tensorflow")


def on_workers(folder: Path, workers: int, options: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Returns what each worker has trained, and what the workers have printed."""
    if build.compiler() is None:
        pytest.skip("no C++ compiler (c++ or g++, or CXX) is installed")
    command = ["--workers", str(workers), "--", sys.executable, "-m", "tests.averaging.program", str(folder)]
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(build.package())])}
    ended = launch(*command, json.dumps(options), cwd=ROOT, deadline_seconds=DEADLINE_SECONDS, env=path)
    assert ended.code == 0, ended
    return [json.loads((folder / f"{worker}.json").read_text()) for worker in range(workers)], ended.text
