"""Finds the cells that docs/from_tf_distribute.md shows: in docs/conformance.md, or by running them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.conformance.case import TOPOLOGIES, all_cases
from tests.conformance.outcomes import Leg, Oracle, run_topology
from tests.conformance.results import versions
from tests.conformance.table import pair
from tests.processes import ROOT

CONFORMANCE = ROOT / "docs" / "conformance.md"
# docs/conformance.md does not have Keras 2.15 unless it is written with --addons-python.
KERAS_2_15 = Path(__file__).parent / "keras_2_15.json"

# Titles of rows in docs/conformance.md.
ROWS = (
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "last batch smaller than the rest",
    "last batch of 3 rows",
    "last batch of 1 row: replicas that get none",
    "masked loss, other numbers of valid steps on each replica",
    "gradient_accumulation_steps=4",
    "an infinity on one replica: all skip the step and halve the scale",
    "BatchNormalization: running statistics averaged",
    "BatchNormalization where a replica gets no rows",
    "Dropout: replicas draw differently, runs repeat",
    "add_loss alone, no compiled loss",
    "add_loss beside a compiled loss",
    "add_loss of one value for each row",
    "add_loss of a Loss object that a layer calls",
    "a loss function that returns the mean of the batch",
    "train_step with tf.reduce_mean",
    "train_step that calls a Loss object",
    "own loop with strategy.run",
    "train_on_batch, test_on_batch",
    "logs of single batches",
    "ModelCheckpoint: one file, never half of one",
)
# Rows that show what stock Keras computes on central_storage for usual programs.
CENTRAL = ("arrays", "Adam", "AUC, Recall and other metrics with state")
SHOWN = ("Mirrored 2", "MultiWorkerMirrored 2x1", "CentralStorage 2")


def stock(text: str) -> str:
    """Returns the part of a cell that is about stock Keras.

    Example:
        >>> stock("wrong 0.56 → pass"), stock("pass")
        ('wrong 0.56', 'pass')
    """
    return text.split(" → ")[0]


def with_tfdist(text: str) -> str:
    """Returns the part of a cell that is about tfdist.

    Example:
        >>> with_tfdist("wrong 0.56 → pass"), with_tfdist("pass")
        ('pass', 'pass')
    """
    return text.split(" → ")[-1]


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
    """Runs the rows on Keras 2.15 with this interpreter, stock and with tfdist, and keeps the cells in a file."""
    leg = Leg("Keras 2.15", python)
    titles = {*ROWS, *CENTRAL}
    cases = [case for case in all_cases().values() if case.title in titles]
    assert {case.title for case in cases} == titles
    cells = {}
    oracle = Oracle(leg)
    try:
        for topology in TOPOLOGIES:
            if topology.name in SHOWN:
                measured = [run_topology(leg, flavour, topology, cases, oracle) for flavour in ("stock", "tfdist")]
                for name in measured[0]:
                    cells[f"{topology.name}: {all_cases()[name].title}"] = pair(*(one[name] for one in measured))
    finally:
        oracle.stop()
    text = json.dumps({"versions": versions(leg), "cells": cells}, indent=1, ensure_ascii=False)
    KERAS_2_15.write_text(f"{text}\n")


def keras_2_15() -> dict[tuple[str, str], str]:
    """Returns the cells of the last measurement with Keras 2.15."""
    cells = json.loads(KERAS_2_15.read_text())["cells"]
    return {tuple(key.split(": ", 1)): cell for key, cell in cells.items()}
