"""The pictures of the documents are those that python -m docs.pictures draws from the present code and results."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from docs.pictures import conformance, packs, reading, step
from docs.pictures.__main__ import PICTURES
from docs.pictures.style import data_in, save
from tests.names_in_code import function_exists
from tests.processes import ROOT

FOLDER = ROOT / "docs" / "pictures"
IDS = [picture.__name__.rpartition(".")[2] for picture in PICTURES]


def drawn(picture: ModuleType, folder: Path) -> Path:
    path = folder / f"{picture.__name__.rpartition('.')[2]}.svg"
    data = picture.data()
    save(picture.draw(data), path, data)
    return path


def texts(path: Path) -> list[str]:
    """Returns the texts of a picture, which matplotlib writes as comments beside the outlines of their letters."""
    return re.findall(r"<!-- (.*?) -->", path.read_text(), re.S)


@pytest.mark.parametrize("picture", PICTURES, ids=IDS)
def test_the_file_is_what_the_script_draws(picture: ModuleType, tmp_path: Path) -> None:
    new = drawn(picture, tmp_path)
    old = FOLDER / new.name
    assert data_in(old) == data_in(new), "run python -m docs.pictures"
    # Another version of matplotlib may write other numbers, but the same texts.
    assert texts(old) == texts(new), "run python -m docs.pictures"
    assert len(texts(old)) > 10


def test_two_runs_write_the_same_bytes_without_a_date(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = drawn(packs, tmp_path / "a").read_bytes(), drawn(packs, tmp_path / "b").read_bytes()
    assert first == second
    assert b"dc:date" not in first


def test_every_file_is_used_in_a_document_with_a_description() -> None:
    documents = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    for path in FOLDER.glob("*.svg"):
        alternative = re.search(rf"!\[([^\]]+)\]\(pictures/{path.name}\)", documents)
        assert alternative is not None, path.name
        assert len(alternative[1].split()) > 8, path.name


def test_every_record_is_drawn_once_for_each_number_of_pipelines() -> None:
    data = reading.data()
    everything = {(name, i) for name, count in data["records"].items() for i in range(count)}
    for plan in (data["shards"], *data["pipelines"].values()):
        read = [(name, i) for shard in plan for name, start, stop in shard for i in range(start, stop)]
        assert len(read) == len(everything)
        assert set(read) == everything


def test_the_results_are_those_of_the_table() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text()
    total = re.search(r"^\| all \| (\d+) → (\d+) \|", text.partition("## Keras 3")[2], re.M)
    assert total is not None
    stock, tfdist = conformance.data()["results"].values()
    assert [sum(row.count("p") for row in one.values()) for one in (stock, tfdist)] == [int(n) for n in total.groups()]


def test_the_functions_on_the_way_of_a_step_exist() -> None:
    named = [where for _, _, where in step.WAY if ".py" in where]
    assert named
    assert all(function_exists(*where.split(": ")) for where in named)
