"""What the README says is what the other documents and the code say."""

from __future__ import annotations

import re

from tests.processes import ROOT

README = " ".join((ROOT / "README.md").read_text().split())


def test_the_numbers_of_conformance_are_those_of_its_table() -> None:
    keras3 = (ROOT / "docs" / "conformance.md").read_text().partition("## Keras 3")[2]
    row = re.search(r"^\| all \| (.*?) \|$", keras3, re.M)
    assert row is not None
    stock, tfdist = zip(*(cell.split(" → ") for cell in row[1].split(" | ")[:5]), strict=True)
    right, wrong, fail = int(stock[0]), int(stock[1]), int(stock[2]) + int(stock[3])
    assert (
        f"of {sum(map(int, stock))} combinations of a feature and a strategy that were measured, it computes the "
        f"numbers of one device in {right}, other numbers without an error in {wrong}, and fails in {fail}."
    ) in README
    assert [int(number) for number in tfdist] == [int(tfdist[0]), 0, 0, 0, int(tfdist[4])]
    assert f"With tfdist, {tfdist[0]} are right, and {tfdist[4]} are refused in one sentence." in README


def test_the_versions_of_python_are_those_of_the_package() -> None:
    low, high = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text()).groups()
    assert f"Python 3.{low} to 3.{int(high) - 1}" in README


def test_it_is_at_most_a_screen_and_a_half_long() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 75
