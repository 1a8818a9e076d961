"""Reports a Verification as a table, as sentences and as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from rich.console import Console
from rich.table import Table

from tfdist.verify.causes import Cause
from tfdist.verify.values import PREFIX
from tfdist.verify.verification import Verdict, Verification

_SHOWN = 5


def verdict_text(verdict: Verdict) -> str:
    """Returns the verdict in a few words, such as "equal to 3e-16".

    Args:
        verdict: the comparison of a topology with one device.
    """
    if verdict.comparison is None:
        return f"failed: {verdict.error}"
    largest = verdict.comparison.largest
    if verdict.is_equal and verdict.causes:
        return f"equal but for rounding ({largest:.0e})"
    if verdict.is_equal:
        return f"equal to {largest:.0e}" if largest else "equal, bit for bit"
    return "differs" if math.isinf(largest) else f"differs by {largest:.1e}"


def differences_text(verdict: Verdict) -> list[str]:
    """Returns a line for each of the first differing values, and one for the number of the others.

    Args:
        verdict: the comparison of a topology with one device.
    """
    if verdict.comparison is None:
        return []
    found = verdict.comparison.differences
    lines = [
        f"{one.kind} {one.name}: {one.size:.1e}" + (f", from step {one.step}" if one.step else "")
        for one in found[:_SHOWN]
    ]
    return lines + ([f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])


def print_report(verification: Verification, console: Console | None = None) -> None:
    """Prints the verdict for each topology, the differences and their causes.

    Args:
        verification: the result.
        console: where to print; None is the terminal.
    """
    console = console or Console(highlight=False)
    if verification.error:
        console.print(verification.output, markup=False, soft_wrap=True)
        reason = verification.error.removeprefix(PREFIX).strip()
        console.print(f"{PREFIX} the program failed on one device: {reason}", markup=False, soft_wrap=True)
        return
    if verification.reason:
        console.print(
            f"The program cannot run in float64 ({verification.reason}), so it ran in float32; the bounds are ten "
            "times the effect of a relative change of 1e-7 of the initial weights, and at least 1e-5. Steps that "
            "change weights by less than 1e-4 of their size hide a wrong gradient; use a larger learning rate for this "
            "run.",
            markup=False,
            soft_wrap=True,
        )
    steps = f"{verification.steps} {'step' if verification.steps == 1 else 'steps'}"
    table = Table(title=f"tfdist verify: {steps} in {verification.floatx}, compared with one device")
    for heading in ("topology", "verdict", "first difference", "likely cause"):
        table.add_column(heading)
    for verdict in verification.verdicts:
        first = differences_text(verdict)[:1]
        table.add_row(
            verdict.topology,
            "failed" if verdict.comparison is None else verdict_text(verdict),
            "".join(first),
            ", ".join(cause.name for cause in verdict.causes),
        )
    console.print(table, markup=False)
    for line in details(verification):
        console.print(line, markup=False, soft_wrap=True)


def details(verification: Verification) -> list[str]:
    """Returns lines with all differences of each topology, and with each cause and the topologies that have it.

    Args:
        verification: the result.
    """
    lines: list[str] = []
    of_cause: dict[Cause, list[Verdict]] = {}
    for verdict in verification.verdicts:
        for cause in verdict.causes:
            of_cause.setdefault(cause, []).append(verdict)
        if not verdict.is_equal:
            lines += ["", f"{verdict.topology}: {verdict_text(verdict)}"]
            lines += [f"  {line}" for line in [*differences_text(verdict), *verdict.output.splitlines()]]
    for cause, verdicts in of_cause.items():
        lines += [
            "",
            f"cause on {', '.join(verdict.topology for verdict in verdicts)}: {cause.name}",
            f"  {cause.text}",
        ]
        if not all(verdict.is_equal for verdict in verdicts):
            lines[-1] += " (confirmed)" if cause.is_proven else " (probable)"
    return lines


def as_json(verification: Verification) -> str:
    """Returns the result as JSON text.

    Args:
        verification: the result.
    """
    values: dict[str, Any] = {
        "equal": verification.is_equal,
        "steps": verification.steps,
        "floatx": verification.floatx,
        "reason": verification.reason,
        "error": verification.error,
        "topologies": [
            {
                "name": verdict.topology,
                "equal": verdict.is_equal,
                "error": verdict.error,
                "largest": _finite(verdict.comparison.largest) if verdict.comparison else None,
                "differences": [
                    {"kind": one.kind, "name": one.name, "step": one.step, "size": _finite(one.size)}
                    for one in (verdict.comparison.differences if verdict.comparison else ())
                ],
                "causes": [
                    {"name": cause.name, "text": cause.text, "proven": cause.is_proven} for cause in verdict.causes
                ],
            }
            for verdict in verification.verdicts
        ],
    }
    return json.dumps(values, indent=1)


def _finite(size: float) -> float | None:
    # JSON has no infinity.
    return size if math.isfinite(size) else None
