"""Compares a program on several topologies with one device, and finds the causes of differences."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tfdist.verify.causes import Cause, candidates, find_causes, leftover_of, settings_that_differ
from tfdist.verify.compare import Comparison, bounds_of, compare, rows_differ
from tfdist.verify.runner import run_program, scratch_folder
from tfdist.verify.values import AS_IT_IS, ONE_DEVICE, Experiment, Record, Result, Run, Topology

# Sums in another order change the last digits.
BOUNDS = {"float64": 1e-10, "float32": 1e-5}
_PERTURBATION = 1e-7

Bounds: TypeAlias = dict[tuple[str, str], list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The comparison of a topology with one device.

    Attributes:
        topology: name of the topology.
        comparison: the differences; None if the program failed on the topology.
        causes: the likely causes of the differences.
        error: why the program failed; "" if it did not.
    """

    topology: str
    comparison: Comparison | None
    causes: tuple[Cause, ...] = ()
    error: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether the topology computes the numbers of one device."""
        return self.comparison is not None and self.comparison.is_equal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of `tfdist verify`.

    Attributes:
        verdicts: the verdict for each topology.
        steps: number of steps that were compared.
        floatx: "float64", or "float32" for a program that cannot run in float64.
        reason: why float64 was not possible.
        error: why the program failed on one device; "" if it did not.
    """

    verdicts: tuple[Verdict, ...] = ()
    steps: int = 0
    floatx: str = "float64"
    reason: str = ""
    error: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether every topology computes the numbers of one device."""
        return not self.error and all(verdict.is_equal for verdict in self.verdicts)

    @property
    def exit_code(self) -> int:
        """0 if all topologies are equal to one device, 1 if one is not, 2 if the program failed."""
        if self.error or any(verdict.comparison is None for verdict in self.verdicts):
            return 2
        return 0 if self.is_equal else 1


class Verifier:
    """Runs a program on one device and on other topologies.

    Args:
        command: words of the program: a path or -m and a module, and its arguments.
        steps: number of steps to compare.
        python: Python interpreter of the program.
        timeout_seconds: time limit of each run.
        say: takes a line about what is running.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        steps: int = 5,
        python: str = sys.executable,
        timeout_seconds: float = 600.0,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._command, self._steps, self._python = tuple(command), steps, python
        self._timeout_seconds, self._say = timeout_seconds, say
        self._folder = scratch_folder()
        self._floatx = "float64"
        self._number = 0
        self._oracles: dict[Experiment, tuple[Record, Bounds] | None] = {}

    def verify(self, others: Sequence[Topology]) -> Verification:
        """Compares topologies with one device.

        Args:
            others: the topologies.
        """
        try:
            return self._verify(others)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _verify(self, others: Sequence[Topology]) -> Verification:
        result = self._run(ONE_DEVICE, AS_IT_IS)
        reason = ""
        if result.error and not result.error.startswith("tfdist verify:"):
            reason, self._floatx = result.error, "float32"
            result = self._run(ONE_DEVICE, AS_IT_IS)
        if result.error:
            return Verification(error=result.error)
        self._oracles[AS_IT_IS] = (result.records[0], self._bounds(result.records[0], AS_IT_IS))
        verdicts: list[Verdict] = []
        for topology in others:
            names = [cause.name for verdict in verdicts[-1:] for cause in verdict.causes]
            verdicts.append(self._verdict(topology, result.records[0], names))
        steps = len(result.records[0].logs)
        return Verification(verdicts=tuple(verdicts), steps=steps, floatx=self._floatx, reason=reason)

    def _verdict(self, topology: Topology, expected: Record, names: list[str]) -> Verdict:
        result = self._run(topology, AS_IT_IS)
        if result.error:
            return Verdict(topology=topology.name, comparison=None, error=result.error)
        comparison = self._compare(result, AS_IT_IS)
        if comparison is None or comparison.is_equal:
            return Verdict(topology=topology.name, comparison=comparison)
        settings = settings_that_differ(expected, result.records)
        if settings:
            causes = [leftover_of(expected, result.records, settings)]
        else:
            causes = find_causes(
                candidates(expected, result.records, data=rows_differ(result, expected)),
                lambda experiment: self._is_equal(topology, experiment),
                leftover_of(expected, result.records, settings),
                expected=names,
            )
        return Verdict(topology=topology.name, comparison=comparison, causes=tuple(causes))

    def _is_equal(self, topology: Topology, experiment: Experiment) -> bool:
        result = self._run(topology, experiment)
        comparison = None if result.error else self._compare(result, experiment)
        return comparison is not None and comparison.is_equal

    def _compare(self, result: Result, experiment: Experiment) -> Comparison | None:
        # The rule for losses, the replayed batches and the compression change nothing on one device.
        oracle = self._oracle(dataclasses.replace(experiment, loss=None, replays=False, uncompressed=False))
        if oracle is None:
            return None
        return compare(result, oracle[0], bound=BOUNDS[self._floatx], bounds=oracle[1])

    def _oracle(self, experiment: Experiment) -> tuple[Record, Bounds] | None:
        """Returns the record and the bounds of one device; None if the program failed."""
        if experiment not in self._oracles:
            result = self._run(ONE_DEVICE, experiment)
            record = result.records[0] if result.records else None
            self._oracles[experiment] = (record, self._bounds(record, experiment)) if record else None
        return self._oracles[experiment]

    def _bounds(self, record: Record, experiment: Experiment) -> Bounds:
        """Returns bounds for float32: what a tiny change of the initial weights does to each value."""
        if self._floatx == "float64":
            return {}
        other = self._run(ONE_DEVICE, experiment, perturbation=_PERTURBATION)
        return bounds_of(record, other.records[0]) if other.records else {}

    def _run(self, topology: Topology, experiment: Experiment, *, perturbation: float = 0.0) -> Result:
        changes = ", ".join(
            f"{field.name}={getattr(experiment, field.name)}"
            for field in dataclasses.fields(experiment)
            if getattr(experiment, field.name) != getattr(AS_IT_IS, field.name)
        )
        self._say(f"{topology.name}, {self._floatx}{f', {changes}' if changes else ''}")
        self._number += 1
        folder = self._folder / str(self._number)
        batches = self._folder / "batches.pickle"
        run = Run(
            topology=topology,
            command=self._command,
            folder=folder,
            steps=self._steps,
            floatx=self._floatx,
            experiment=experiment,
            perturbation=perturbation,
            batches=batches,
        )
        result = run_program(run, python=self._python, timeout_seconds=self._timeout_seconds)
        if topology is ONE_DEVICE and result.records and not batches.exists():
            (folder / "batches.pickle").rename(batches)
        return result
