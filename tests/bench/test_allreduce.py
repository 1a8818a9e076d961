from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket

import pytest
from rich.console import Console

from tfdist import bench
from tfdist.bench import allreduce as bench_allreduce
from tfdist.bench.wire import bytes_sent, interface_of

ROWS = [
    {
        "algorithm": "auto",
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


def test_the_table_says_every_number():
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(bench_allreduce.table(ROWS, 120e6))
    line = ["32M", "auto", "none", "447.39", "75.0", "112.5", "0.94", "50,331,648", "1.000"]
    assert line in [line.split() for line in capture.get().splitlines()]


def test_the_plot_is_a_picture(tmp_path):
    bench_allreduce.plot(ROWS, 120e6, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_smallest_pack_that_is_as_good_as_the_best_is_recommended():
    packs = [
        {"bytes_per_pack": 1 << 20, "seconds": 1.2},
        {"bytes_per_pack": 2 << 20, "seconds": 1.01},
        {"bytes_per_pack": 4 << 20, "seconds": 1.0},
        {"bytes_per_pack": 8 << 20, "seconds": 1.1},
    ]
    assert bench_allreduce.recommend(packs) == 2 << 20


@pytest.mark.parametrize(("text", "size"), [("1K", 1024), ("256M", 1 << 28), ("2G", 2 << 30), ("12", 12)])
def test_sizes_are_written_with_a_unit(text, size):
    assert bench_allreduce.size_from_text(text) == size
    assert bench_allreduce.size_as_text(size) == text


@pytest.mark.parametrize("text", ["", "M", "1.5M", "-1K", "3", "1T"])
def test_other_sizes_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected at least 4 bytes as in 32M"):
        bench_allreduce.size_from_text(text)


def test_the_loopback_interface_counts():
    before = bytes_sent(interface_of("localhost"))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(bytes(100_000))
    assert bytes_sent(interface_of("127.0.0.1")) >= before + 100_000
    with pytest.raises(ValueError, match="expected an interface of this machine, received 'none-such'"):
        bytes_sent("none-such")


@pytest.mark.parametrize("address", ["192.0.2.7", "none-such.invalid"])
def test_an_address_of_another_machine_is_refused(address):
    with pytest.raises(ValueError, match=f"^expected an address of this machine, received {address}; name one"):
        interface_of(address)


@pytest.mark.parametrize("module", ["matplotlib", "psutil"])
def test_what_is_not_installed_is_said_before_measuring(module, monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else found(name))
    with pytest.raises(SystemExit) as ended:
        bench.main(["allreduce"])
    assert ended.value.code == 2
    expected = f"tfdist bench allreduce: expected {module}, found none; pip install 'tfdist[bench]'.\n"
    assert capsys.readouterr().err == expected


def test_two_workers_measure_what_they_send(children, tmp_path):
    arguments = ["--size", "4K", "--size", "256K", "--method", "tensorflow", "--method", "none", "--method", "fp16"]
    finished = children.start_command(
        "-m", "tfdist", "launch", "--workers", "2", "--timeout-seconds", "100", "-m", "tfdist", "bench", "allreduce",
        *arguments, "--runs", "3", "--output", str(tmp_path / "out"),
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
    # Two workers: each sends what it has once; whatever else goes through the loopback interface comes on top.
    assert whole["wire"] > packed["ring"]
    assert packed["wire"] > packed["ring"] == 1 << 18
    assert half["wire"] > packed["ring"] / 2
    assert "recommended: bytes_per_pack=" not in finished.out  # 512K is more than there is to send.
    assert "usable: " in finished.out
    assert os.path.exists(tmp_path / "out" / "allreduce.png")


def test_one_process_sums_over_its_devices(children, tmp_path):
    finished = children.start_command(
        "-m", "tfdist", "bench", "allreduce", "--size", "1M", "--method", "none", "--method", "topk:0.1",
        "--runs", "2", "--output", str(tmp_path),
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
    assert "recommended: bytes_per_pack=" in finished.out


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
        (["--runs", "0"], "expected --runs of at least 1"),
        (["--method", "zip"], "expected all_reduce.compression out of none"),
        (["--size", "1T"], "expected at least 4 bytes as in 32M"),
        (["--algorithm", "ring"], "received 'ring'"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["allreduce", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
