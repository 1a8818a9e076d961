"""Compares two runs: the largest difference, and the variable, metric and step that have it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np

from tfdist.verify.values import Record, Result

# Rounding dominates the relative error of numbers below this one.
_SMALLEST = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs from that of one device.

    Attributes:
        kind: "weight", "metric" or "evaluate".
        name: name of the variable or metric.
        step: number of the first step after which it differs by more than the bound, from 1; 0 for evaluate.
        size: the largest relative difference in any step.
    """

    kind: str
    name: str
    step: int
    size: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences between a run and one device.

    Attributes:
        largest: the largest relative difference of any value, also within the bounds.
        differences: the values that differ by more than their bounds, in the order of their first steps.
    """

    largest: float
    differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether no value differs by more than its bound."""
        return not self.differences


def error_of(own: np.ndarray | float, expected: np.ndarray | float) -> float:
    """Returns the largest difference between two values, relative to the largest expected value.

    Args:
        own: a number or an array.
        expected: a number or an array; below 1e-3 the difference is divided by 1e-3.

    Example:
        >>> from tfdist.verify.compare import error_of
        >>> error_of(1.5, 1.0), error_of(float("nan"), 1.0), error_of(float("nan"), float("nan"))
        (0.5, inf, 0.0)
    """
    one, other = np.asarray(own, dtype=float), np.asarray(expected, dtype=float)
    if one.shape != other.shape or not (np.isfinite(one) == np.isfinite(other)).all():
        return math.inf
    finite = np.isfinite(other)
    if not finite.any():
        return 0.0
    return float(np.abs(one - other)[finite].max() / max(_SMALLEST, float(np.abs(other[finite]).max())))


def values_of(record: Record) -> dict[tuple[str, str], list[np.ndarray | float]]:
    """Returns the values of a record by kind and name, one for each step; for "evaluate" a single one."""
    found: dict[tuple[str, str], list[np.ndarray | float]] = {}
    for kind, steps in (("weight", record.weights), ("metric", record.logs), ("evaluate", [record.evaluated])):
        for step in steps:
            for name, value in step.items():
                found.setdefault((kind, name), []).append(value)
    return found


def bounds_of(exact: Record, *perturbed: Record, factor: float = 10.0) -> dict[tuple[str, str], list[float]]:
    """Returns a bound for each value and step: a multiple of the largest change up to this step by perturbations.

    Args:
        exact: the record of one device.
        *perturbed: records of one device with small changes of the initial weights.
        factor: the multiple.
    """
    bounds: dict[tuple[str, str], list[float]] = {key: [0.0] * len(steps) for key, steps in values_of(exact).items()}
    for other in map(values_of, perturbed):
        for key, steps in values_of(exact).items():
            changes = [
                factor * error_of(theirs, own) for own, theirs in zip(steps, other.get(key, steps), strict=False)
            ]
            bounds[key] = [max(pair) for pair in zip(bounds[key], itertools.accumulate(changes, max), strict=False)]
    return bounds


def compare(
    result: Result, expected: Record, *, bound: float, bounds: dict[tuple[str, str], list[float]] | None = None
) -> Comparison:
    """Compares every process of a run with one device.

    Args:
        result: the run.
        expected: the record of one device.
        bound: largest relative difference that counts as equal.
        bounds: larger bounds for each value and step.
    """
    found: dict[tuple[str, str], Difference] = {}
    largest = 0.0
    for record in result.records:
        own = values_of(record)
        for key, steps in values_of(expected).items():
            given = own.get(key, [])
            for i, value in enumerate(steps):
                size = error_of(given[i], value) if i < len(given) else math.inf
                largest = max(largest, size)
                allowed = max([bound, *((bounds or {}).get(key, [])[i : i + 1])])
                if size > allowed:
                    step = 0 if key[0] == "evaluate" else i + 1
                    earlier = found.get(key)
                    found[key] = Difference(
                        kind=key[0],
                        name=key[1],
                        step=min(step, earlier.step) if earlier else step,
                        size=max(size, earlier.size if earlier else 0.0),
                    )
    order = sorted(found.values(), key=lambda one: (one.step or math.inf, -one.size))
    return Comparison(largest=largest, differences=tuple(order))


def rows_differ(result: Result, expected: Record) -> str:
    """Returns how the data of a run differ from those of one device; "" if each global batch has the same rows.

    Args:
        result: the run.
        expected: the record of one device.
    """
    for step, (whole,) in enumerate(expected.rows):
        parts = [
            [row for replica in record.rows[step] for row in replica] if step < len(record.rows) else []
            for record in result.records
        ]
        own = [row for part in parts for row in part]
        if Counter(own) == Counter(whole):
            continue
        if len(parts) > 1 and parts[0] and all(Counter(part) == Counter(parts[0]) for part in parts):
            return f"in step {step + 1} all workers read the same {len(parts[0])} rows"
        if len(own) != len(whole):
            return f"the global batch of step {step + 1} has {len(own)} rows instead of {len(whole)}"
        others = len(own) - sum((Counter(own) & Counter(whole)).values())
        return f"{others} of the {len(own)} rows of step {step + 1} are others than on one device"
    return ""


def first_change(result: Result, expected: Record, *, bound: float) -> str:
    """Returns what a second run on one device computes otherwise than the first one; "" if they are equal.

    Args:
        result: the second run.
        expected: the record of the first run.
        bound: largest relative difference that counts as equal.
    """
    if rows_differ(result, expected):
        return "the rows of the batches"
    (record,) = result.records
    for name, value in expected.initial.items():
        if name not in record.initial or error_of(record.initial[name], value) > bound:
            return f"the initial value of {name}"
    found = compare(result, expected, bound=bound).differences
    return f"the {found[0].kind} {found[0].name}" if found else ""
