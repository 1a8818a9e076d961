from __future__ import annotations

import json
import math

import pytest
from rich.console import Console

from tfdist import bench
from tfdist.bench import optimizer as bench_optimizer
from tfdist.bench.optimizer_shapes import MODELS

ROWS = [
    {
        "model": "resnet50",
        "optimizer": name,
        "jit_compile": jit,
        "milliseconds": milliseconds / (2 if jit else 1),
        "limit": 5.0,
        "gigabytes_per_second": 30.0,
    }
    for name, milliseconds in (("SGD", 20.0), ("Adam", 40.0), ("keras Lamb", 100.0), ("LAMB", 50.0))
    for jit in (False, True)
]


@pytest.mark.parametrize(
    ("model", "variables", "parameters"),
    [("resnet50", 161, 25_557_032), ("bert_base", 197, 108_891_648), ("small", 1000, 64_000)],
)
def test_shapes_are_those_of_the_model(model, variables, parameters):
    shapes = MODELS[model]()
    assert (len(shapes), sum(map(math.prod, shapes))) == (variables, parameters)


def test_every_optimizer_is_measured_with_and_without_jit_compile(monkeypatch):
    monkeypatch.setitem(MODELS, "small", lambda: [(4, 4), (4,)])
    rows = bench_optimizer.measure("small", runs=1, steps=1)
    names = {row["optimizer"] for row in rows}
    assert names >= {"SGD", "Adam", "AdamW", "LAMB", "LARS", "LARS, no decay"}
    assert len(rows) == 2 * len(names)
    assert all(row["milliseconds"] > 0 and row["limit"] > 0 for row in rows)


def test_the_table_shows_every_number():
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(bench_optimizer.table(ROWS))
    assert ["resnet50", "LAMB", "50.0", "25.0", "5.0", "1.25", "2.50", "0.25"] in [
        line.split() for line in capture.get().splitlines()
    ]


def test_results_are_written_and_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_optimizer, "measure", lambda *args: ROWS)
    assert bench.main(["optimizer", "--model", "resnet50", "--output", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "optimizer.json").read_text()) == ROWS
    assert (tmp_path / "out" / "optimizer.png").read_bytes().startswith(b"\x89PNG")
    assert "LAMB" in capsys.readouterr().out


def test_numbers_below_one_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["optimizer", "--runs", "0"])
    assert ended.value.code == 2
    assert "expected --runs and --steps to be at least 1, received --runs 0 --steps 3." in capsys.readouterr().err
