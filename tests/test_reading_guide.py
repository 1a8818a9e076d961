"""Every file and name that docs/reading_guide.md mentions exists."""

from __future__ import annotations

import re

import pytest

from tests.names_in_code import function_exists
from tests.processes import ROOT

TEXT = (ROOT / "docs" / "reading_guide.md").read_text()
LIVES = ("start-up", "batch", "step", "snapshot")
NAMED = re.findall(r"\| `(\S+\.py)` \| `([\w.]+)` \|$", TEXT, re.M)


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:tfdist|tests|benchmarks)/[^`]+)`", TEXT)
    assert len(paths) > 50
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{path}:{name}" for path, name in NAMED])
def test_a_name_is_in_its_file(path: str, name: str) -> None:
    assert function_exists(path, name)


def test_each_life_names_its_functions() -> None:
    lives = TEXT.split("\n## ")[2:6]
    assert [life.split("\n")[0] for life in lives] == [f"The life of a {what}" for what in LIVES]
    assert all(len([line for line in life.splitlines() if ".py` | `" in line]) >= 8 for life in lives)


def test_a_name_that_does_not_exist_would_be_found() -> None:
    assert not function_exists("tfdist/input/plan.py", "plan_shard")
    assert not function_exists("tfdist/input/plan.py", "ShardPlan.no_such_method")
    assert function_exists("tfdist/input/plan.py", "ShardPlan.imbalance")
