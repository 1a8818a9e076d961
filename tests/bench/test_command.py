from __future__ import annotations

from tfdist import bench


def test_an_unknown_benchmark_is_refused(capsys):
    assert bench.main(["output"]) == 2
    assert capsys.readouterr().err.startswith(
        "tfdist bench: expected one of the benchmarks allreduce, input, optimizer, received 'output';"
    )


def test_help_lists_benchmarks(capsys):
    assert bench.main(["--help"]) == 0
    assert "  input   " in capsys.readouterr().out
