"""What became of a cell, in a word, and how all cells of a leg are run: two topologies at a time."""

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

# As many clusters as there are cores; a cell is mostly tracing, which is one thread's work.
CLUSTERS_AT_A_TIME = 2


@dataclasses.dataclass(frozen=True)
class Leg:
    """A Keras to run with.

    Attributes:
        name: what the table calls it.
        python: the interpreter of its environment.
        environment: variables that it needs.
    """

    name: str
    python: str = sys.executable
    environment: tuple[tuple[str, str], ...] = ()

    def variables(self) -> dict[str, str]:
        """The environment of a process of it."""
        inherited = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
        return {**inherited, **dict(self.environment)}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of the table.

    Attributes:
        word: pass, wrong, raises, refuses, hangs or n/a.
        size: of the largest relative error; infinite where results differ in more than numbers.
        detail: the error, the reason, or where the largest error is.
        log: what the processes wrote, if it did not pass.
    """

    word: str
    size: float = 0.0
    detail: str = ""
    log: str = ""


class Oracle:
    """One device on stock Keras in a process without tfdist; remembers what it has computed."""

    def __init__(self, leg: Leg) -> None:
        self._cluster = ResidentCluster("oracle", ONE_DEVICE, python=leg.python, environment=leg.variables())
        self._known: dict[tuple, Outcome] = {}
        self._lock = threading.Lock()

    def expected(self, case: Case, topology: Topology) -> Outcome:
        """Returns what one device gives for a case as a topology would be given it."""
        key = (case.name, *(getattr(topology, part) for part in case.per))
        with self._lock:
            if key not in self._known:
                self._known[key] = self._cluster.run(case, topology)
            return self._known[key]

    def stop(self) -> None:
        """Ends its process."""
        self._cluster.stop()


def judge(case: Case, outcome: Outcome, expected: Outcome) -> Cell:
    """Compares what every rank returned with what one device returns."""
    if expected.values and isinstance(expected.values[0], str):
        return Cell("n/a", detail=expected.values[0])
    if not expected.values:
        return Cell("raises", detail=f"on one device: {expected.error}", log=expected.log)
    if outcome.hung:
        return Cell("hangs", detail=outcome.error, log=outcome.log)
    if outcome.error:
        # Sentences of tfdist's own, and Keras's for what it knows that it cannot do.
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
    """Runs cases on one topology, one after another, on processes that stay."""
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
    leg: Leg, flavour: str, wanted: dict[Topology, list[Case]]
) -> Iterator[dict[Topology, concurrent.futures.Future]]:
    """Starts to run the cases wanted of every topology; gives their futures."""
    oracle = Oracle(leg)
    with concurrent.futures.ThreadPoolExecutor(CLUSTERS_AT_A_TIME) as pool:
        try:
            yield {
                topology: pool.submit(run_topology, leg, flavour, topology, cases, oracle)
                for topology, cases in wanted.items()
            }
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            oracle.stop()


def this_leg() -> Leg:
    """Returns the leg of the interpreter and the environment that this runs in."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS")
    return Leg("this", environment=(("TF_USE_LEGACY_KERAS", legacy),) if legacy else ())
