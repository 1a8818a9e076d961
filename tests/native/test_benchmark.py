"""`tfdist bench allreduce` compares the transports of one strategy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.processes import launch, run


def test_two_workers_measure_both_transports_and_one_of_them_is_recommended(
    tmp_path: Path, with_native: dict[str, str]
) -> None:
    command = ["-m", "tfdist", "bench", "allreduce", "--size", "4K", "--size", "4M", "--method", "none", "--runs", "3"]
    ended = launch("--workers", "2", *command, cwd=tmp_path, deadline_seconds=120.0, env=with_native)
    assert ended.code == 0
    found = json.loads((tmp_path / "bench-allreduce" / "allreduce.json").read_text())
    assert [(row["size"], row["transport"]) for row in found["rows"]] == [
        (size, transport) for size in (4 << 10, 4 << 20) for transport in ("tensorflow", "native")
    ]
    tensorflow, native = found["rows"][2:]
    # Workers of one host share memory with the native transport, and send through the loopback interface without it.
    assert tensorflow["wire"] > tensorflow["ring"]
    assert native["wire"] < native["ring"] / 10
    assert [(row["bytes_per_pack"] >> 10, row["transport"]) for row in found["packs"]] == [
        (pack, transport) for pack in (512, 1024, 2048, 4096) for transport in ("tensorflow", "native")
    ]
    best = min(found["packs"], key=lambda row: row["seconds"])["transport"]
    assert f"recommended: AllReduceOptions(transport='{best}', bytes_per_pack=" in ended.text


def test_one_process_measures_the_transport_beside_the_algorithms_of_tensorflow(
    tmp_path: Path, with_native: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "tfdist", "bench", "allreduce", "--size", "1M", "--method", "none", "--runs", "2"]
    ended = run(command, cwd=tmp_path, deadline_seconds=120.0, env=with_native)
    assert ended.code == 0
    found = json.loads((tmp_path / "bench-allreduce" / "allreduce.json").read_text())
    assert [(row["algorithm"], row["transport"]) for row in found["rows"]] == [
        ("hierarchical_copy", "tensorflow"),
        ("reduction_to_one_device", "tensorflow"),
        ("auto", "native"),
    ]
    recommended = ended.text.rpartition("recommended: ")[2].partition(", packs of ")[0]
    # The options are taken, not refused.
    code = f"""import tensorflow as tf
import tfdist
from tfdist import AllReduceOptions, create_strategy
from tfdist.optimizers import DistributedOptimizer
strategy = {recommended.partition(", and ")[0].replace("create_strategy(", "create_strategy('mirrored', devices=2, ")}
with strategy.scope():
    sgd = tf.keras.optimizers.SGD()
    optimizer = {recommended.partition(", and ")[2].replace("Optimizer(", "Optimizer(sgd, ", 1)}
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
model.fit(tf.ones([4, 2]), tf.ones([4, 1]), verbose=0)
"""
    assert run([sys.executable, "-c", code], cwd=tmp_path, deadline_seconds=120.0, env=with_native).code == 0


def test_one_replica_is_refused_for_the_native_transport(tmp_path: Path, with_native: dict[str, str]) -> None:
    options = ["--transport", "native", "--devices", "1"]
    command = [sys.executable, "-m", "tfdist", "bench", "allreduce", *options]
    ended = run(command, cwd=tmp_path, deadline_seconds=120.0, env=with_native)
    assert ended.code == 2
    assert "expected several replicas for --transport native, received one; give --devices=2 or more." in ended.text
