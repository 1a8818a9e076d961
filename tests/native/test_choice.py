"""Which transport is chosen, and what is refused."""

from __future__ import annotations

import pytest

import tfdist
from tests.native.conftest import Trained


def test_without_the_package_training_goes_through_tensorflow_and_a_line_says_so(train):
    trained = train("auto", native=False)
    assert [result["sent"] for result in trained.results] == [[], []]
    assert trained.ended.text.count("all-reduce: auto chose ring (tfdist-native is not installed)") == 1


def test_with_the_package_a_line_says_that_it_is_chosen(train):
    trained = train("auto")
    assert all(result["sent"] for result in trained.results)
    assert trained.ended.text.count("all-reduce: auto chose tfdist-native") == 1


def test_if_one_worker_has_no_package_all_workers_go_through_tensorflow(train):
    trained = train("auto", "without")
    assert [result["sent"] for result in trained.results] == [[], []]
    assert (
        "[workers 0, 1] tfdist: gradients are sent by TensorFlow: tfdist-native is not installed (worker 1)\n"
        in trained.ended.text
    )


def refusal(trained: Trained) -> str:
    return next(line for line in trained.ended.text.splitlines() if "RuntimeError: " in line).partition("Error: ")[2]


@pytest.mark.parametrize("words", [("native",), ("native", "without")])
def test_native_is_refused_on_all_workers_if_one_has_no_package(words, train):
    trained = train(*words, native="without" in words, code=1)
    who = "worker 1" if "without" in words else "worker 0"
    assert refusal(trained) == (
        f"expected all workers to have the native transport, received: tfdist-native is not installed ({who}); install "
        "tfdist-native with `pip install 'tfdist[native]'` on all workers, or leave all_reduce.transport out."
    )


def test_an_unknown_transport_is_refused():
    with pytest.raises(ValueError, match="transport to be one of auto, tensorflow, native, received 'gloo'"):
        tfdist.AllReduceOptions(transport="gloo")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 2}, "within one process, received: tfdist-native is not installed; leave"),
        (
            {"devices": 2, "algorithm": "hierarchical_copy"},
            "mirrored, received 0 GPUs and 'hierarchical_copy'",
        ),
    ],
)
def test_native_is_refused_where_a_mirrored_strategy_cannot_use_it(options, message, four_cpus):
    devices = options.pop("devices")
    with pytest.raises(ValueError, match=message):
        tfdist.create_strategy(
            "mirrored", devices=devices, all_reduce=tfdist.AllReduceOptions(transport="native", **options)
        )
