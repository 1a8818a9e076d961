"""The report of a verification, on plain values."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tfdist.verify import Verification
from tfdist.verify.causes import ROUNDING, Cause
from tfdist.verify.compare import Comparison, Difference
from tfdist.verify.report import as_json, print_report
from tfdist.verify.verification import Verdict

NOISE = Cause(name="random layers", text="dropout draws", is_proven=True)
DIFFERENCES = tuple(Difference(kind="weight", name=f"dense_{i}/kernel", step=1, size=0.5) for i in range(7))
DIFFERS = Comparison(largest=0.5, differences=DIFFERENCES)
EQUAL = Comparison(largest=3e-9, differences=())


def printed(verification: Verification) -> str:
    text = io.StringIO()
    print_report(verification, Console(file=text, width=80))
    return text.getvalue()


def test_a_cause_is_explained_once_for_all_topologies_that_have_it() -> None:
    verdicts = tuple(
        Verdict(topology=name, comparison=DIFFERS, causes=(NOISE,)) for name in ("2 replicas", "2 workers")
    )
    text = printed(Verification(verdicts=verdicts, steps=5))
    assert text.count("dropout draws (confirmed)") == 1
    assert "cause on 2 replicas, 2 workers: random layers" in text
    assert text.count("and 2 more") == 2


def test_lines_of_the_table_fit_80_columns() -> None:
    verdict = Verdict(topology="2 replicas", comparison=DIFFERS, causes=(NOISE, ROUNDING))
    table = [line for line in printed(Verification(verdicts=(verdict,), steps=5)).splitlines() if "│" in line]
    assert table and max(map(len, table)) <= 80


def test_a_difference_by_rounding_is_equal_and_explained() -> None:
    text = printed(Verification(verdicts=(Verdict(topology="2 replicas", comparison=EQUAL, causes=(ROUNDING,)),)))
    assert "equal but for" in text and "Adam amplifies" in text


def test_the_output_of_a_program_that_fails_is_shown() -> None:
    text = printed(Verification(error="ValueError: no data", output="Traceback:\nValueError: no data"))
    assert text.startswith("Traceback:\n")
    assert text.endswith("the program failed on one device: ValueError: no data\n")
    failed = Verdict(topology="2 workers", comparison=None, error="KeyError: 'x'", output="Traceback:\nKeyError: 'x'")
    text = printed(Verification(verdicts=(failed,)))
    assert "2 workers: failed: KeyError: 'x'\n  Traceback:" in text


@pytest.mark.parametrize("largest", [0.5, float("inf")])
def test_json_has_every_difference(largest: float) -> None:
    comparison = Comparison(largest=largest, differences=DIFFERENCES)
    verification = Verification(verdicts=(Verdict(topology="2 replicas", comparison=comparison, causes=(NOISE,)),))
    (topology,) = json.loads(as_json(verification))["topologies"]
    assert topology["largest"] == (0.5 if largest == 0.5 else None)
    assert len(topology["differences"]) == 7
    assert topology["causes"] == [{"name": "random layers", "text": "dropout draws", "proven": True}]


def test_a_result_in_float32_says_which_faults_it_cannot_show() -> None:
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        print_report(Verification(steps=5, floatx="float32", reason="TypeError: no float64"), console)
    assert "Steps that change weights by less than 1e-4 of their size hide a wrong gradient" in captured.get()
