from __future__ import annotations

import pytest

from tfdist import bench


def test_an_unknown_benchmark_is_refused(capsys):
    assert bench.main(["output"]) == 2
    assert capsys.readouterr().err.startswith(
        "tfdist bench: expected one of the benchmarks allreduce, input, optimizer, received 'output';"
    )


def test_help_lists_benchmarks(capsys):
    assert bench.main(["--help"]) == 0
    assert "  input   " in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(bench.BENCHMARKS))
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(name, tmp_path, capsys):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SystemExit) as ended:
        bench.main([name, "--output", str(tmp_path / "file" / "results")])
    assert ended.value.code == 2
    assert f"tfdist bench {name}: expected --output to be a folder that can be written" in capsys.readouterr().err
