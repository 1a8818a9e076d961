"""Finds the cells of stock Keras that docs/from_tf_distribute.md shows: in docs/conformance.md, or by running them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from tests.conformance.case import TOPOLOGIES, all_cases
from tests.conformance.outcomes import Leg, Oracle, run_topology
from tests.conformance.results import versions
from tests.conformance.table import said
from tests.processes import ROOT

CONFORMANCE = ROOT / "docs" / "conformance.md"
# docs/conformance.md does not have Keras 2.15 unless it is written with --addons-python.
KERAS_2_15 = Path(__file__).parent / "keras_2_15.json"


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the conformance table, and what a user of stock Keras can do.

    Attributes:
        title: heading of the row in docs/conformance.md.
        use: what to use with tfdist.
        topology: the topology of a row of a strategy that has rows of its own; empty for Mirrored and MultiWorkerMirrored.
    """

    title: str
    use: str = "the same program"
    topology: str = ""


ROWS = (
    Row("clipnorm"),
    Row("global_clipnorm"),
    Row("clipvalue"),
    Row("last batch smaller than the rest"),
    Row("last batch of 3 rows"),
    Row("last batch of 1 row: replicas that get none"),
    Row("masked loss, other numbers of valid steps on each replica"),
    Row("gradient_accumulation_steps=4", "the same program; with Keras 2, `DistributedOptimizer`"),
    Row("an infinity on one replica: all skip the step and halve the scale"),
    Row("BatchNormalization: running statistics averaged", "the same program, or `sync_batch_norm=True`"),
    Row("BatchNormalization where a replica gets no rows", "the same program, or `sync_batch_norm=True`"),
    Row("Dropout: replicas draw differently, runs repeat"),
    Row("add_loss alone, no compiled loss"),
    Row("add_loss beside a compiled loss"),
    Row("add_loss of one value for each row"),
    Row("add_loss of a Loss object that a layer calls"),
    Row("a loss function that returns the mean of the batch"),
    Row("train_step with tf.reduce_mean", "the same program; see [losses](losses.md)"),
    Row("train_step that calls a Loss object", "the same program; see [losses](losses.md)"),
    Row("own loop with strategy.run"),
    Row("train_on_batch, test_on_batch"),
    Row("logs of single batches"),
    Row("ModelCheckpoint: one file, never half of one", "the same callback on every worker"),
)
# Rows of strategies on which stock Keras computes other numbers, or nothing, for the most usual programs.
CENTRAL = tuple(
    Row(title, topology="CentralStorage 2")
    for title in ("arrays", "Adam", "AUC, Recall and other metrics with state")
)
SHOWN = ("Mirrored 2", "MultiWorkerMirrored 2x1", "CentralStorage 2")


def stock(text: str) -> str:
    """Returns the part of a cell that is about stock Keras.

    Example:
        >>> stock("wrong 0.56 → pass"), stock("pass")
        ('wrong 0.56', 'pass')
    """
    return text.split(" → ")[0]


def documented() -> dict[str, dict[tuple[str, str], str]]:
    """Returns the cells of docs/conformance.md: for the name of each Keras, by topology and title of the row."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for section in re.split(r"^## ", CONFORMANCE.read_text(), flags=re.M)[1:]:
        name = section.split(",")[0]
        tables = section.split("\n| | ")[1:]
        if not tables:
            continue
        heading, _, *lines = tables[0].splitlines()
        topologies = [cell.strip() for cell in heading.strip(" |").split("|")]
        for line in lines:
            if not line.startswith("|"):
                break
            title, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(name, {}).update({(t, title): c for t, c in zip(topologies, cells, strict=True)})
    return found


def measure_keras_2_15(python: str) -> None:
    """Runs the rows on stock Keras 2.15 with this interpreter, and keeps the cells in a file."""
    leg = Leg("Keras 2.15", python)
    titles = {row.title for row in ROWS + CENTRAL}
    cases = [case for case in all_cases().values() if case.title in titles]
    assert {case.title for case in cases} == titles
    cells = {}
    oracle = Oracle(leg)
    try:
        for topology in TOPOLOGIES:
            if topology.name in SHOWN:
                for name, cell in run_topology(leg, "stock", topology, cases, oracle).items():
                    cells[f"{topology.name}: {all_cases()[name].title}"] = said(cell)
    finally:
        oracle.stop()
    KERAS_2_15.write_text(json.dumps({"versions": versions(leg), "cells": cells}, indent=1) + "\n")


def keras_2_15() -> tuple[str, dict[tuple[str, str], str]]:
    """Returns the versions and the cells of the last measurement with Keras 2.15."""
    kept = json.loads(KERAS_2_15.read_text())
    return kept["versions"], {tuple(key.split(": ", 1)): cell for key, cell in kept["cells"].items()}
