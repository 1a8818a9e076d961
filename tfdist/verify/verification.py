"""Compares a program on several topologies with one device, and finds the causes of differences."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from tfdist.verify.causes import (
    ROUNDING,
    Cause,
    candidates,
    find_causes,
    leftover_of,
    settings_that_differ,
    unrepeatable,
)
from tfdist.verify.compare import Comparison, bounds_of, compare, first_change, rows_differ
from tfdist.verify.runner import run_program, scratch_folder
from tfdist.verify.values import AS_IT_IS, ONE_DEVICE, PREFIX, Experiment, Record, Result, Run, Topology

# Sums in another order change the last digits.
BOUNDS = {"float64": 1e-10, "float32": 1e-5}
_PERTURBATIONS = {"float64": 1e-13, "float32": 1e-7}
_PERTURBED_RUNS = 2
# Larger differences are seldom the effect of rounding in float64, so that other causes are tried first.
_LARGEST_ROUNDING = 1e-2

Bounds: TypeAlias = dict[tuple[str, str], list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The comparison of a topology with one device.

    Attributes:
        topology: name of the topology.
        comparison: the differences; None if the program failed on the topology.
        causes: the likely causes of the differences; for equal numbers, the cause of differences above the bound.
        error: why the program failed; "" if it did not.
        output: the last lines that the program has written, if it failed.
    """

    topology: str
    comparison: Comparison | None
    causes: tuple[Cause, ...] = ()
    error: str = ""
    output: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether the topology computes the numbers of one device."""
        return self.comparison is not None and self.comparison.is_equal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of `tfdist verify`, which is true if every topology computes the numbers of one device.

    Attributes:
        verdicts: the verdict for each topology.
        steps: number of steps that were compared.
        floatx: "float64", or "float32" for a program that cannot run in float64.
        reason: why float64 was not possible.
        error: why the program failed on one device; "" if it did not.
        output: the last lines that the program has written, if it failed on one device.

    Example:
        >>> from tfdist.verify import Verification
        >>> bool(Verification(steps=5)), bool(Verification(error="ValueError: no data"))
        (True, False)
    """

    verdicts: tuple[Verdict, ...] = ()
    steps: int = 0
    floatx: str = "float64"
    reason: str = ""
    error: str = ""
    output: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether every topology computes the numbers of one device."""
        return not self.error and all(verdict.is_equal for verdict in self.verdicts)

    def __bool__(self) -> bool:
        return self.is_equal

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
        python: Python interpreter of the program, and its options.
        timeout_seconds: time limit of each run.
        say: takes a line about what is running.
        folder: folder for the records, which is removed after the verification; None makes a folder.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        steps: int = 5,
        python: Sequence[str] = (sys.executable,),
        timeout_seconds: float = 600.0,
        say: Callable[[str], None] = lambda line: None,
        folder: Path | None = None,
    ) -> None:
        self._command, self._steps, self._python = tuple(command), steps, python
        self._timeout_seconds, self._say = timeout_seconds, say
        self._folder = folder or scratch_folder()
        self._floatx = "float64"
        self._number = 0
        self._oracles: dict[Experiment, Record | None] = {}
        self._perturbed: dict[Experiment, Bounds] = {}
        self._changed: str | None = None

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
        if result.error and not result.error.startswith(PREFIX):
            reason, self._floatx = result.error, "float32"
            result = self._run(ONE_DEVICE, AS_IT_IS)
        if result.error:
            return Verification(error=result.error, output=result.output)
        self._oracles[AS_IT_IS] = result.records[0]
        verdicts: list[Verdict] = []
        for topology in others:
            names = [cause.name for verdict in verdicts[-1:] for cause in verdict.causes]
            verdicts.append(self._verdict(topology, result.records[0], names))
        steps = len(result.records[0].logs)
        return Verification(verdicts=tuple(verdicts), steps=steps, floatx=self._floatx, reason=reason)

    def _verdict(self, topology: Topology, expected: Record, names: list[str]) -> Verdict:
        result = self._run(topology, AS_IT_IS)
        if result.error:
            return Verdict(topology=topology.name, comparison=None, error=result.error, output=result.output)
        comparison = compare(result, expected, bound=BOUNDS[self._floatx])
        if not comparison.is_equal:
            changed = self._changes_by_itself(expected)
            if changed:
                cause = unrepeatable(changed)
                return Verdict(topology=topology.name, comparison=comparison, causes=(cause,))
            comparison = self._compare(result, AS_IT_IS) or comparison
        if comparison.is_equal:
            return self._equal(topology, comparison)
        settings = settings_that_differ(expected, result.records)
        if settings:
            causes = [leftover_of(expected, result.records, settings)]
        else:
            data = rows_differ(result, expected)
            weights_differ = any(one.kind == "weight" for one in comparison.differences)
            leftover = leftover_of(expected, result.records, settings, data=data, weights_differ=weights_differ)
            causes = find_causes(
                candidates(expected, result.records, data=data),
                lambda experiment: self._is_equal(topology, experiment),
                leftover,
                expected=names,
            )
            if causes == [leftover]:
                rounded = self._compare(result, AS_IT_IS, largest_rounding=math.inf)
                if rounded is not None and rounded.is_equal:
                    return self._equal(topology, rounded)
        return Verdict(topology=topology.name, comparison=comparison, causes=tuple(causes))

    def _changes_by_itself(self, expected: Record) -> str:
        """Returns what a second run on one device computes otherwise than the first one; "" if they are equal.

        The effect of rounding, and of each cause, can only be found in a program that repeats its numbers.
        """
        if self._changed is None:
            result = self._run(ONE_DEVICE, AS_IT_IS)
            self._changed = "" if result.error else first_change(result, expected, bound=BOUNDS[self._floatx])
        return self._changed

    def _equal(self, topology: Topology, comparison: Comparison) -> Verdict:
        is_rounded = self._floatx == "float64" and comparison.largest > BOUNDS["float64"]
        return Verdict(topology=topology.name, comparison=comparison, causes=(ROUNDING,) if is_rounded else ())

    def _is_equal(self, topology: Topology, experiment: Experiment) -> bool:
        result = self._run(topology, experiment)
        comparison = None if result.error else self._compare(result, experiment)
        return comparison is not None and comparison.is_equal

    def _compare(
        self, result: Result, experiment: Experiment, *, largest_rounding: float = _LARGEST_ROUNDING
    ) -> Comparison | None:
        """Returns the comparison with one device; None if the program failed there.

        Args:
            result: the run to compare.
            experiment: its changes to the program.
            largest_rounding: size up to which a difference in float64 is compared with the effect of rounding.
        """
        # The rule for losses, the replayed batches and the compression change nothing on one device.
        alone = dataclasses.replace(experiment, loss=None, replays=False, uncompressed=False)
        record = self._oracle(alone)
        if record is None:
            return None
        # `evaluate` reads the replayed batches, which are other rows than the first ones of data that are shuffled.
        expected = dataclasses.replace(record, evaluated={}) if experiment.replays else record
        comparison = compare(result, expected, bound=BOUNDS[self._floatx])
        if comparison.is_equal or (self._floatx == "float64" and comparison.largest > largest_rounding):
            return comparison
        return compare(result, expected, bound=BOUNDS[self._floatx], bounds=self._bounds(record, alone))

    def _oracle(self, experiment: Experiment) -> Record | None:
        """Returns the record of one device; None if the program failed."""
        if experiment not in self._oracles:
            result = self._run(ONE_DEVICE, experiment)
            self._oracles[experiment] = result.records[0] if result.records else None
        return self._oracles[experiment]

    def _bounds(self, record: Record, experiment: Experiment) -> Bounds:
        """Returns bounds from tiny changes of the initial weights, which change each value as rounding does."""
        if experiment not in self._perturbed:
            runs = [
                self._run(ONE_DEVICE, experiment, perturbation=_PERTURBATIONS[self._floatx], perturbation_seed=seed)
                for seed in range(_PERTURBED_RUNS)
            ]
            self._perturbed[experiment] = bounds_of(record, *(one.records[0] for one in runs if one.records))
        return self._perturbed[experiment]

    def _run(
        self,
        topology: Topology,
        experiment: Experiment,
        *,
        perturbation: float = 0.0,
        perturbation_seed: int = 0,
    ) -> Result:
        changes = ", ".join(
            f"{field.name}={getattr(experiment, field.name)}"
            for field in dataclasses.fields(experiment)
            if getattr(experiment, field.name) != getattr(AS_IT_IS, field.name)
        )
        if perturbation:
            changes += f"{', ' if changes else ''}initial weights changed by {perturbation:g}"
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
            perturbation_seed=perturbation_seed,
            batches=batches,
        )
        result = run_program(run, python=self._python, timeout_seconds=self._timeout_seconds)
        # A program with a loop of its own writes no batches.
        if topology is ONE_DEVICE and not batches.exists() and (folder / "batches.pickle").exists():
            (folder / "batches.pickle").rename(batches)
        return result
