from __future__ import annotations

import json

import pytest
from rich.console import Console

from tfdist import AllReduceOptions
from tfdist.bench.allreduce_report import Results, plot, recommend, report, table

ROWS = [
    {
        "algorithm": "auto",
        "transport": "tensorflow",
        "method": method,
        "size": size,
        "bytes_per_pack": None,
        "seconds": size / rate,
        "algbw": rate,
        "busbw": 1.5 * rate,
        "wire": size * 1.5,
        "ring": size * 1.5,
    }
    for size in (1 << 20, 32 << 20)
    for method, rate in (("tensorflow", 50e6), ("none", 75e6))
]


def printed(rows):
    console = Console(width=132, color_system=None)
    with console.capture() as capture:
        console.print(table(rows, 120e6))
    return [line.split() for line in capture.get().splitlines()]


def test_the_table_shows_every_number():
    line = ["32M", "auto", "tensorflow", "none", "447.39", "75.0", "112.5", "0.94", "50,331,648", "1.000"]
    assert line in printed(ROWS)


def test_the_table_of_one_replica_has_no_ratio_to_the_bytes_of_a_ring():
    assert ["1M", "auto", "tensorflow", "tensorflow", "20.97", "50.0", "0.0", "0.00", "1,572,864"] in printed(
        [{**ROWS[0], "busbw": 0.0, "ring": 0.0}]
    )


def test_the_plot_is_a_picture(tmp_path):
    plot(ROWS, 120e6, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def pack(transport, megabytes, seconds):
    return {"transport": transport, "bytes_per_pack": megabytes << 20, "seconds": seconds}


OF_TENSORFLOW = [pack("tensorflow", *one) for one in ((1, 1.2), (2, 1.01), (4, 1.0), (8, 1.1))]


def test_the_smallest_pack_that_is_as_good_as_the_best_is_recommended():
    assert recommend(OF_TENSORFLOW) == AllReduceOptions(bytes_per_pack=2 << 20)


def test_the_transport_with_the_fastest_pack_is_recommended_with_its_smallest_pack_that_is_as_good():
    native = [pack("native", *one) for one in ((1, 0.9), (2, 0.8), (4, 0.79), (8, 0.795))]
    assert recommend(OF_TENSORFLOW + native) == AllReduceOptions(transport="native", bytes_per_pack=2 << 20)
    slow = [pack("native", 1, 1.005)]
    assert recommend(OF_TENSORFLOW + slow) == AllReduceOptions(transport="tensorflow", bytes_per_pack=2 << 20)


def test_the_recommendation_names_the_transport_if_several_were_measured(tmp_path, capsys):
    packs = [{**ROWS[3], **pack("tensorflow", 1, 2.0)}, {**ROWS[3], **pack("native", 1, 1.0)}]
    report(Results(replicas=2, usable=1e9, rows=[*ROWS, {**ROWS[3], "transport": "native"}], packs=packs), tmp_path)
    out = capsys.readouterr().out
    assert "recommended: AllReduceOptions(transport='native', bytes_per_pack=1048576), packs of 1M\n" in out


@pytest.mark.parametrize(("seconds", "option"), [(1.0, "transport='native'"), (3.0, "algorithm='hierarchical_copy'")])
def test_the_options_of_one_process_are_those_that_its_strategy_and_its_optimizer_take(
    tmp_path, capsys, seconds, option
):
    of_tensorflow = {**ROWS[3], **pack("tensorflow", 1, 2.0), "algorithm": "hierarchical_copy"}
    packs = [of_tensorflow, {**ROWS[3], **pack("native", 1, seconds)}]
    report(Results(replicas=2, usable=None, rows=ROWS, packs=packs), tmp_path)
    text = f"create_strategy(all_reduce=AllReduceOptions({option})), and DistributedOptimizer(all_reduce=AllReduce"
    assert f"recommended: {text}Options(bytes_per_pack=1048576)), packs of 1M\n" in capsys.readouterr().out


def test_one_transport_in_one_process_is_not_named(tmp_path, capsys):
    packs = [{**ROWS[3], **pack("tensorflow", 1, 2.0)}]
    report(Results(replicas=2, usable=None, rows=ROWS, packs=packs), tmp_path)
    text = "recommended: DistributedOptimizer(all_reduce=AllReduceOptions(bytes_per_pack=1048576)), packs of 1M\n"
    assert text in capsys.readouterr().out


def test_no_column_of_the_table_is_cut(tmp_path, capsys):
    row = {**ROWS[3], "algorithm": "reduction_to_one_device"}
    report(Results(replicas=2, usable=1e9, rows=[row], packs=[]), tmp_path)
    assert "…" not in capsys.readouterr().out


def test_results_are_written_and_printed(tmp_path, capsys):
    packs = [{**ROWS[3], "bytes_per_pack": size, "seconds": (2 << 20) / size} for size in (1 << 20, 2 << 20)]
    report(Results(replicas=4, usable=120e6, rows=ROWS, packs=packs), tmp_path / "new" / "folder")
    found = json.loads((tmp_path / "new" / "folder" / "allreduce.json").read_text())
    assert found == {"replicas": 4, "usable": 120e6, "rows": ROWS, "packs": packs}
    assert (tmp_path / "new" / "folder" / "allreduce.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "plain TCP around the ring of workers: 120.0 MB/s\n" in out
    assert "recommended: AllReduceOptions(bytes_per_pack=2097152), packs of 2M\n" in out
