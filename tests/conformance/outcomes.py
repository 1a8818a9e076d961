"""Runs the cells of a leg, two topologies at a time, and sums up each result in a word such as pass or wrong."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import math
import os
import sys
import threading
from collections.abc import Iterator

from tests.conformance.case import ONE_DEVICE, Case, Topology
from tests.conformance.cluster import Outcome, ResidentCluster
from tests.conformance.compare import Differs, error_of

# One cluster for each of two cores: a cell mostly traces, which uses one thread.
CLUSTERS_AT_A_TIME = 2


@dataclasses.dataclass(frozen=True)
class Leg:
    """A version of Keras with its Python environment.

    Attributes:
        name: its name in the output, such as "Keras 3".
        python: path of the Python interpreter of its environment.
        environment: environment variables that choose this Keras.
    """

    name: str
    python: str = sys.executable
    environment: tuple[tuple[str, str], ...] = ()

    def variables(self) -> dict[str, str]:
        """Returns the environment variables of a process of this leg."""
        inherited = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
        return {**inherited, **dict(self.environment)}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of the table.

    Attributes:
        word: pass, wrong, raises, refuses, hangs or n/a.
        size: the largest relative error; infinite if the results differ in more than the values of floats.
        detail: the error message, the reason for n/a, or the name of the value with the largest error.
        log: the output of the processes after an error.
    """

    word: str
    size: float = 0.0
    detail: str = ""
    log: str = ""


class Oracle:
    """Computes the expected results: one device on stock Keras, in a process without tfdist. Results are cached."""

    def __init__(self, leg: Leg) -> None:
        self._cluster = ResidentCluster("oracle", ONE_DEVICE, python=leg.python, environment=leg.variables())
        self._known: dict[tuple, Outcome] = {}
        self._lock = threading.Lock()

    def expected(self, case: Case, topology: Topology) -> Outcome:
        """Returns the result of one device for a case and the topology that is compared with it."""
        name = case.reference or case.name
        key = (name, *(getattr(topology, part) for part in case.per))
        with self._lock:
            if key not in self._known:
                self._known[key] = self._cluster.run(dataclasses.replace(case, name=name), topology)
            return self._known[key]

    def stop(self) -> None:
        """Ends the process of the oracle."""
        self._cluster.stop()


def judge(case: Case, outcome: Outcome, expected: Outcome) -> Cell:
    """Compares the values of every rank with those of one device."""
    if expected.values and isinstance(expected.values[0], str):
        return Cell("n/a", detail=expected.values[0])
    if not expected.values:
        return Cell("raises", detail=f"on one device: {expected.error}", log=expected.log)
    if outcome.hung:
        return Cell("hangs", detail=outcome.error, log=outcome.log)
    if outcome.error:
        # Each refusal of tfdist begins with the first text. Keras 2 writes the second if a strategy lacks a feature.
        refused = outcome.error.startswith("ValueError: expected ") or "is not supported with the tf.distribute" in (
            outcome.error
        )
        return Cell("refuses" if refused else "raises", detail=outcome.error, log=outcome.log)
    try:
        size, where = max(error_of(value, expected.values[0]) for value in outcome.values)
    except Differs as difference:
        return Cell("wrong", math.inf, str(difference))
    return Cell("pass" if size <= case.tolerance else "wrong", size, where)


def run_topology(leg: Leg, flavour: str, topology: Topology, cases: list[Case], oracle: Oracle) -> dict[str, Cell]:
    """Runs cases on one topology, one after another, in the same processes."""
    cells = {}
    cluster = ResidentCluster(flavour, topology, python=leg.python, environment=leg.variables())
    try:
        for case in cases:
            reason = case.applies(topology)
            if reason:
                cells[case.name] = Cell("n/a", detail=reason)
                continue
            expected = oracle.expected(case, topology)
            if expected.values and isinstance(expected.values[0], str):
                cells[case.name] = judge(case, expected, expected)
            else:
                cells[case.name] = judge(case, cluster.run(case), expected)
            print(f"{leg.name}, {flavour}, {topology.name}: {case.name}: {cells[case.name].word}", flush=True)
    finally:
        cluster.stop()
    return cells


@contextlib.contextmanager
def running(
    leg: Leg, flavour: str, wanted: dict[Topology, list[Case]], *, clusters_at_a_time: int = CLUSTERS_AT_A_TIME
) -> Iterator[dict[Topology, concurrent.futures.Future]]:
    """Starts the wanted cases of every topology and yields the future of each topology."""
    oracle = Oracle(leg)
    with concurrent.futures.ThreadPoolExecutor(clusters_at_a_time) as pool:
        try:
            yield {
                topology: pool.submit(run_topology, leg, flavour, topology, cases, oracle)
                for topology, cases in wanted.items()
            }
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            oracle.stop()


def this_leg() -> Leg:
    """Returns the leg of this interpreter and its environment variables."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS")
    return Leg("this", environment=(("TF_USE_LEGACY_KERAS", legacy),) if legacy else ())
