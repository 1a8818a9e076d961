from __future__ import annotations

import importlib.util
import json

import pytest

from tests.processes import WARM_LAUNCH
from tfdist import bench


@pytest.mark.parametrize("module", ["matplotlib", "psutil"])
def test_a_missing_package_is_reported_before_measuring(module, monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else found(name))
    with pytest.raises(SystemExit) as ended:
        bench.main(["allreduce"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"tfdist bench allreduce: expected the package {module} to be installed, found none; "
        "run pip install '.[bench]' in a checkout of tfdist.\n"
    )


def test_two_workers_measure_the_bytes_that_they_send(children, tmp_path):
    arguments = ["--size", "4K", "--size", "256K", "--method", "tensorflow", "--method", "none", "--method", "fp16"]
    finished = children.start_command(
        *WARM_LAUNCH, "--workers", "2", "--timeout-seconds", "100", "-m", "tfdist", "bench", "allreduce",
        *arguments, "--transport", "tensorflow", "--runs", "3", "--output", str(tmp_path / "out"),
    ).end()  # fmt: skip
    assert finished.code == 0, finished.err
    found = json.loads((tmp_path / "out" / "allreduce.json").read_text())
    assert found["replicas"] == 2
    assert found["usable"] > 0
    assert [(row["size"], row["method"]) for row in found["rows"]] == [
        (size, method) for size in (4096, 1 << 18) for method in ("tensorflow", "none", "fp16")
    ]
    whole, packed, half = found["rows"][3:]
    for row in (whole, packed, half):
        assert row["busbw"] == pytest.approx(row["algbw"]) == pytest.approx(row["size"] / row["seconds"])
    # Each of the two workers sends its tensor once. All other traffic on the loopback interface is counted too.
    assert whole["wire"] > packed["ring"]
    assert packed["wire"] > packed["ring"] == 1 << 18
    assert half["wire"] > packed["ring"] / 2
    assert "recommended: " not in finished.out  # The smallest pack, 512K, is larger than the tensor.
    assert "plain TCP around the ring of workers: " in finished.out
    assert (tmp_path / "out" / "allreduce.png").exists()


def test_one_process_sums_over_its_devices(children, tmp_path):
    finished = children.start_command(
        "-m", "tfdist", "bench", "allreduce", "--size", "1M", "--method", "none", "--method", "topk:0.1",
        "--transport", "tensorflow", "--runs", "2", "--output", str(tmp_path),
    ).end()  # fmt: skip
    assert finished.code == 0, finished.err
    found = json.loads((tmp_path / "allreduce.json").read_text())
    assert found["usable"] is None
    assert [row["wire"] for row in found["rows"]] == [None] * 4
    assert [(row["algorithm"], row["method"]) for row in found["rows"]] == [
        (algorithm, method)
        for algorithm in ("hierarchical_copy", "reduction_to_one_device")
        for method in ("none", "topk:0.1")
    ]
    assert "recommended: DistributedOptimizer(all_reduce=AllReduceOptions(" in finished.out


def test_several_algorithms_across_workers_are_refused(monkeypatch, capsys):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(SystemExit) as ended:
        bench.main(["allreduce", "--algorithm", "ring", "--algorithm", "nccl"])
    assert ended.value.code == 2
    assert "expected one --algorithm across workers, received ring, nccl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "0"], "expected --runs to be at least 1, received 0."),
        (["--method", "zip"], "expected all_reduce.compression to be one of none"),
        (["--size", "1T"], "expected a number of bytes, at least 4, such as 4096 or 32M, received '1T'."),
        (["--algorithm", "ring"], "received 'ring'"),
    ],
)
def test_arguments_that_cannot_be_measured_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["allreduce", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
