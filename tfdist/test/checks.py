"""The checks of `tfdist test`, and how they end. This file imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# Sums in another order change the last digits of float64.
BOUND = 1e-10

START = "start"
ALL_REDUCE = "all-reduce"
UNEVEN = "fit, uneven last batch"
NORMALIZATION = "BatchNormalization"
CLIPPING = "clipping"
DISTRIBUTED = "DistributedOptimizer"
SAVING = "save and load"
RESUME = "resume after a kill"

CHECKS: dict[str, str] = {
    START: "the workers find each other",
    ALL_REDUCE: "sums over all workers are exact",
    UNEVEN: "a fit whose last batch has fewer rows for some replicas computes the numbers of one device",
    NORMALIZATION: "so does a fit with synchronized BatchNormalization and with Dropout(0)",
    CLIPPING: "so does a fit that clips by the norm of all gradients",
    DISTRIBUTED: "so does a fit with DistributedOptimizer",
    SAVING: "the chief writes a model that gives the same predictions when it is loaded",
    RESUME: "a training of which the last worker is killed goes on and ends with the same bits",
}
"""The checks in their order, and what each of them shows."""

# The checks that are compared with one device.
COMPARED = (UNEVEN, NORMALIZATION, CLIPPING, DISTRIBUTED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a check has ended.

    Attributes:
        check: its name.
        verdict: "pass", "fail" or "not run".
        text: what was measured, or what is wrong.
        seconds: how long it took.
    """

    check: str
    verdict: str
    text: str = ""
    seconds: float = 0.0


class Record:
    """The file in which a process records the checks that it begins and ends, so that nothing is lost if it dies.

    Args:
        path: the file.

    Example:
        >>> import tempfile
        >>> record = Record(Path(tempfile.mkdtemp(), "record"))
        >>> record.begin("clipping")
        >>> record.running(), record.outcomes()
        ('clipping', [])
        >>> record.end(Outcome(check="clipping", verdict="pass"))
        >>> record.running(), [outcome.verdict for outcome in record.outcomes()]
        ('', ['pass'])
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, check: str) -> None:
        """Records that a check begins."""
        self._append({"begin": check})

    def end(self, outcome: Outcome) -> None:
        """Records that a check has ended."""
        self._append(dataclasses.asdict(outcome))

    def running(self) -> str:
        """Returns the check that has begun and not ended; "" if there is none."""
        lines = self._lines()
        return str(lines[-1].get("begin", "")) if lines else ""

    def outcomes(self) -> list[Outcome]:
        """Returns the outcomes that have been recorded."""
        return [Outcome(**line) for line in self._lines() if "begin" not in line]

    def _append(self, value: Mapping[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(value) + "\n")

    def _lines(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        # A process that is killed may leave half a line.
        whole, _, _ = self._path.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]


def completed(outcomes: Iterable[Outcome], *, failed: str = "", reason: str = "") -> tuple[Outcome, ...]:
    """Returns an outcome for each check.

    Args:
        outcomes: the outcomes of the checks that have ended.
        failed: the check that has not ended although it began, or that could not begin; "" if there is none.
        reason: why.

    Example:
        >>> started = Outcome(check="start", verdict="pass")
        >>> for outcome in completed([started], failed="all-reduce", reason="no reply")[:3]:
        ...     print(outcome.check, outcome.verdict, outcome.text, sep=" | ")
        start | pass |
        all-reduce | fail | no reply
        fit, uneven last batch | not run |
    """
    found = {outcome.check: outcome for outcome in outcomes}
    if failed and (failed not in found or found[failed].verdict == "pass"):
        found[failed] = Outcome(check=failed, verdict="fail", text=reason)
    return tuple(found.get(check, Outcome(check=check, verdict="not run")) for check in CHECKS)


def first_without_outcome(outcomes: Iterable[Outcome]) -> str:
    """Returns the first check that has not ended; the last check if all have.

    Example:
        >>> first_without_outcome([Outcome(check="start", verdict="pass")])
        'all-reduce'
    """
    ended = {outcome.check for outcome in outcomes}
    return next((check for check in CHECKS if check not in ended), RESUME)
