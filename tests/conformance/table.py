"""Writes docs/conformance.md from the results of all cells on stock Keras and with tfdist."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from tests.conformance.case import GROUPS, TOPOLOGIES, all_cases
from tests.conformance.outcomes import Cell

WORDS = ("pass", "wrong", "raises", "hangs", "refuses", "n/a")

HEAD = """\
# Conformance

Does a strategy train, evaluate, predict and save what one device does with the same global batches? Each row is a
program that is run twice: on one device with stock Keras, and on a strategy. From the same initial weights, after ten
or more steps of the optimizer, weights, losses, metrics and predictions have to agree within a relative error of 1e-5
(other bounds are given below, with the reason). Every cell is run with stock `tf.distribute` and Keras, and with
tfdist. This file is generated:

```sh
{command}
```

- **pass**: within the bound. **wrong** 0.04: no error was raised and the numbers are wrong, the largest relative error
  is 0.04; *wrong* alone: differs in more than numbers, such as the number of steps or what is in a file.
- **raises**: ends with an error. **hangs**: no answer within 180 s, or a worker that waits for ever.
- **refuses**: ends with one sentence that says what is not supported.
- **n/a**: does not apply, see the reasons below.
- `raises → pass`: stock raises, tfdist passes. One word: the same on both.

A name such as *2x1* says workers x logical CPU devices of each. Parameter servers are asynchronous: they are compared
with one worker, whose steps come one after another.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The cells of one Keras.

    Attributes:
        keras: name and versions of Keras, TensorFlow and Python.
        cells: the cells by flavour ("stock" or "tfdist"), name of the topology and name of the case.
    """

    keras: str
    cells: dict[tuple[str, str, str], Cell]


def said(cell: Cell) -> str:
    """Returns the text of a cell, such as "wrong 0.04"."""
    if cell.word == "wrong" and math.isfinite(cell.size):
        return f"wrong {cell.size:.2g}"
    return cell.word


def pair(stock: Cell, own: Cell) -> str:
    """Returns the text of a cell on stock Keras and with tfdist, such as "raises → pass"."""
    before, after = said(stock), said(own)
    return after if before == after else f"{before} → {after}"


def rows_of(measured: Measured) -> list[str]:
    """Returns the lines of the table of one Keras."""
    lines = [
        "| | " + " | ".join(topology.name for topology in TOPOLOGIES) + " |",
        "| --- |" + " --- |" * len(TOPOLOGIES),
    ]
    for group in GROUPS:
        lines.append(f"| **{group.replace('_', ' ')}** |" + " |" * len(TOPOLOGIES))
        for case in all_cases().values():
            if case.group == group:
                pairs = (
                    pair(*(measured.cells[flavour, topology.name, case.name] for flavour in ("stock", "tfdist")))
                    for topology in TOPOLOGIES
                )
                lines.append(f"| {case.title} | " + " | ".join(pairs) + " |")
    return lines


def counts_of(measured: Measured) -> list[str]:
    """Returns the lines of the table that counts the cells of each result, for stock Keras and for tfdist."""
    lines = ["| stock → tfdist | " + " | ".join(WORDS) + " | largest error of tfdist |", "| --- |" + " ---: |" * 7]
    names = [topology.name for topology in TOPOLOGIES]
    for name, chosen in [*((name, [name]) for name in names), ("all", names)]:
        found = {
            flavour: [cell for (f, topology, _), cell in measured.cells.items() if f == flavour and topology in chosen]
            for flavour in ("stock", "tfdist")
        }
        counted = (
            " → ".join(str(sum(cell.word == word for cell in found[f])) for f in ("stock", "tfdist")) for word in WORDS
        )
        exact = [
            cell.size
            for (f, topology, case), cell in measured.cells.items()
            if f == "tfdist" and topology in chosen and cell.word == "pass" and not all_cases()[case].why
        ]
        lines.append(f"| {name} | " + " | ".join(counted) + f" | {max(exact, default=0.0):.1g} |")
    return lines


def reasons_of(measured: Measured, word: str, flavour: str) -> list[str]:
    """Returns a line for each reason given by cells with this word."""
    found: dict[str, dict[str, list[str]]] = {}
    for (f, topology, name), cell in measured.cells.items():
        if f == flavour and cell.word == word:
            sentence = cell.detail.splitlines()[0].removeprefix("ValueError: ")
            found.setdefault(sentence, {}).setdefault(all_cases()[name].title, []).append(topology)
    return [
        f"- {'; '.join(f'{title} ({_topologies(where)})' for title, where in cases.items())}: “{sentence}”"
        for sentence, cases in found.items()
    ]


def _topologies(names: Iterable[str]) -> str:
    names = list(names)
    return "everywhere" if len(names) == len(TOPOLOGIES) else ", ".join(names)


def tolerances() -> list[str]:
    """Returns a line for each reason for a tolerance other than the default."""
    found: dict[tuple[float, str], list[str]] = {}
    for case in all_cases().values():
        if case.why:
            found.setdefault((case.tolerance, case.why), []).append(case.title)
    return [f"- {'; '.join(titles)}: {tolerance:g}. {why}" for (tolerance, why), titles in found.items()]


def document(command: str, legs: Iterable[Measured]) -> str:
    """Returns the text of docs/conformance.md."""
    parts = [HEAD.format(command=command)]
    for measured in legs:
        parts += [f"## {measured.keras}\n", *counts_of(measured), "", *rows_of(measured), ""]
        for title, word, flavour in (
            ("Refused by tfdist", "refuses", "tfdist"),
            ("Does not apply", "n/a", "tfdist"),
        ):
            lines = reasons_of(measured, word, flavour)
            if lines:
                parts += [f"{title}:\n", *lines, ""]
    parts += ["## Bounds other than 1e-5\n", *tolerances()]
    return "\n".join(parts) + "\n"
