"""Training over the native transport has the numbers of one device, and the same bits on every worker."""

from __future__ import annotations

import json
import sys

import pytest

from tests.conformance.compare import error_of
from tests.native.conftest import PROGRAM
from tests.processes import run

BOUND = 1e-10
FULL = pytest.mark.full


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Returns the result of the program without a strategy."""
    folder = tmp_path_factory.mktemp("one")
    ended = run([sys.executable, str(PROGRAM), str(folder)], cwd=folder, deadline_seconds=120.0)
    assert ended.code == 0
    return json.loads((folder / "0.json").read_text())


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (("native",), 2),
        (("auto", "distributed"), 2),
        (("native", "mirrored", "devices:2"), 1),
        pytest.param(("native", "mirrored", "devices:4", "distributed"), 1, marks=FULL),
        pytest.param(("native", "devices:2"), 1, marks=FULL),
        pytest.param(("native", "distributed", "devices:2"), 2, marks=FULL),
        pytest.param(("native", "distributed"), 3, marks=FULL),
    ],
)
def test_fit_has_the_numbers_of_one_device_and_the_same_bits_on_every_worker(words, workers, one_device, train):
    trained = train(*words, workers=workers)
    assert len(trained.results) == workers
    assert len({result["digest"] for result in trained.results}) == 1
    for result in trained.results:
        assert error_of(result["history"], one_device["history"])[0] <= BOUND
        assert error_of(result["weights"], one_device["weights"])[0] <= BOUND
        assert all(sent > 100_000 for sent in result["sent"])
        assert len(result["sent"]) == max(int(word.partition(":")[2] or 1) for word in words)


@FULL
@pytest.mark.parametrize("words", [("native",), ("native", "distributed")])
def test_training_with_three_workers_repeats_bit_for_bit(words, train):
    first, second = train(*words, workers=3), train(*words, "again", workers=3)
    assert len({result["digest"] for result in first.results + second.results}) == 1


@FULL
@pytest.mark.parametrize("compression", ["topk:0.1", "fp16", "bf16", "threshold", "powersgd"])
def test_compressed_training_repeats_bit_for_bit_and_is_that_of_tensorflows_transport(compression, train):
    words = ("distributed", f"compression:{compression}")
    first, second = train("native", *words), train("native", *words, "again")
    assert len({result["digest"] for result in first.results + second.results}) == 1
    assert first.results[0]["sent"][0] > 0
    stock = train("tensorflow", *words)
    assert stock.results[0]["sent"] == []
    # Two summands have one sum, whoever adds them.
    assert stock.results[0]["digest"] == first.results[0]["digest"]
