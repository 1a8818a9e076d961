from __future__ import annotations

import dataclasses
import json

import pytest
from rich.console import Console

from tests.processes import ROOT
from tfdist import bench
from tfdist.bench import input as bench_input
from tfdist.bench.input_workloads import WORKLOADS
from tfdist.input import write_tfrecords

ROWS = [
    {
        "workload": "small",
        "pipelines": pipelines,
        "source": source,
        "real": 1000.0 * pipelines,
        "cached": 1500.0,
        "synthetic": 2000.0,
        "stall": 0.25,
        "bytes": 1.0,
    }
    for pipelines in (1, 2)
    for source in bench_input.SOURCES
]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_parsed_examples_have_the_features_that_the_step_expects(workload):
    work = WORKLOADS[workload]
    x, y = work.parse(work.example(13))
    assert (x.shape, int(y)) == ((work.features,), 3)
    assert work.example(13) == work.example(13) != work.example(14)


@pytest.mark.full
@pytest.mark.parametrize(("source", "workers"), [("tfdist", 2), ("DATA", 2)])
def test_workers_read_their_share_or_everything(source, workers, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    work = dataclasses.replace(WORKLOADS["small"], records=40_000)
    names = write_tfrecords(work.examples(), str(tmp_path / "data"), num_shards=8)
    size = sum((tmp_path / name).stat().st_size for name in names)
    result = bench_input.measure("small", source, workers, str(tmp_path / "data-*.tfrecord"))
    assert set(result) == {"real", "cached", "synthetic", "stall", "bytes"}
    assert result["bytes"] / size == pytest.approx(1 if source == "tfdist" else workers, abs=0.05)


def test_the_table_shows_every_number():
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(bench_input.table(ROWS))
    assert ["small", "2", "tfdist", "2,000", "1,500", "2,000", "0.25", "1.000"] in [
        line.split() for line in capture.get().splitlines()
    ]


def test_the_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    bench_input.plot(ROWS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_results_are_written_and_printed(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(bench_input, "run", lambda *args: ROWS)
    assert bench.main(["input", "--output", str(tmp_path / "out"), "--pipelines", "1", "2"]) == 0
    assert json.loads((tmp_path / "out" / "input.json").read_text()) == ROWS
    assert "tfdist" in capsys.readouterr().out


def test_numbers_below_one_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["input", "--pipelines", "0"])
    assert ended.value.code == 2
    expected = "expected --pipelines and --runs to be at least 1, received --pipelines 0 --runs 1."
    assert expected in capsys.readouterr().err
