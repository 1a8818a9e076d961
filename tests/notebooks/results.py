"""What the outputs of each notebook must show: numbers in its texts, and its plots."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.notebooks.execution import Shown


def _first_distributed_model(shown: Shown) -> None:
    # One device in the kernel, two devices in the kernel, and the line of the chief of two workers.
    line = r"^{}replicas: {}, held-out accuracy (\S+), loss (\S+)$"
    one, two, workers = (shown.numbers(line.format(*place)) for place in (("", 1), ("", 2), (r"\[worker 0\] ", 2)))
    assert one == two == workers
    assert one[0] > 0.88
    assert shown.numbers(r"largest relative difference: (\S+)")[0] < 1e-9
    assert len(shown.plots) == 1


def _tpu(shown: Shown) -> None:
    assert re.search(r"expected a TPU, found none.* TPU_NAME.*COLAB_TPU_ADDR", shown.text)
    assert "There is no TPU, so nothing is trained in this cell." in shown.text
    assert "[worker 0] 8 replicas" in shown.text
    one, eight = (shown.numbers(rf"^{name} device\w*: *accuracy (\S+)$") for name in ("one", "eight"))
    assert one == eight and one[0] > 0.9
    assert shown.numbers(r"largest relative difference of the loss: (\S+)")[0] < 1e-3
    assert len(shown.plots) == 1


def _input_from_files(shown: Shown) -> None:
    assert "25 steps in an epoch" in shown.text
    for workers in (2, 4):
        records = 1400 // workers
        for worker in range(workers):
            assert f"[worker {worker}] has read {records} records in 25 steps" in shown.text
    assert "1, 2 and 4 workers read the same global batches; an epoch has every record once" in shown.text
    assert "InputState(seed=1, epoch=0, step=10, canonical_shards=None)" in shown.text
    assert "the last 15 steps are the same" in shown.text
    assert shown.numbers(r"held-out accuracy (\S+)")[0] > 0.85
    assert len(shown.plots) == 2


def _large_batches(shown: Shown) -> None:
    small = shown.numbers(r"^SGD, batch 44: (\S+)$")[0]
    assert small > 0.88
    for name in ("LARS", "LAMB"):
        assert shown.numbers(rf"^{name} with warmup, batch 700: (\S+)$")[0] > 0.85
    assert len(shown.plots) == 1


def _slow_network(shown: Shown) -> None:
    line = r"^{}: (\S+) MB, (\S+) times fewer bytes, accuracy (\S+)$"
    none, fp16, topk, powersgd = (
        shown.numbers(line.format(name)) for name in ("none", "fp16", "topk:0.05", "powersgd:2")
    )
    # 220 steps of 38,410 gradients; two workers that form a ring send each gradient once.
    assert none[0] == round(220 * 38410 * 4 / 1e6, 2) and none[1] == 1.0
    assert fp16[1] == 2.0
    assert min(topk[1], powersgd[1]) > 8
    assert min(accuracy for *_, accuracy in (none, fp16, topk, powersgd)) > 0.85
    assert shown.numbers(r"largest relative difference of the loss: (\S+)")[0] < 1e-3
    assert len(shown.plots) == 1


def _survive(shown: Shown) -> None:
    assert "tfdist launch: worker 1 failed (killed by SIGKILL" in shown.text
    assert "restart 1 of 1" in shown.text
    step, again = shown.numbers(r"worker 1 was killed at step (\d+), and went on with step (\d+)")
    assert step == 220 and again <= 220
    assert shown.numbers(r"^(\d+) of (\d+) weights are equal bit by bit$") == [4, 4]
    assert len(shown.plots) == 1


def _parameter_servers(shown: Shown) -> None:
    servers = shown.numbers(r"^\[chief 0\] held-out accuracy (\S+) after (\d+) steps$")
    one = shown.numbers(r"^held-out accuracy (\S+) after (\d+) steps$")
    assert servers[1] == one[1] == 220
    assert min(servers[0], one[0]) > 0.85
    assert len(shown.plots) == 1


RESULTS: dict[str, Callable[[Shown], None]] = {
    "01_first_distributed_model": _first_distributed_model,
    "02_tpu": _tpu,
    "03_input_from_files": _input_from_files,
    "04_large_batches": _large_batches,
    "05_slow_network": _slow_network,
    "06_survive": _survive,
    "07_parameter_servers": _parameter_servers,
}
