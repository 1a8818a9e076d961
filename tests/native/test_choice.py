"""Which transport is chosen, and what is refused."""

from __future__ import annotations

import errno
import os
import re

import pytest

import tfdist
from tests.native.conftest import Trained
from tfdist.allreduce.native import install
from tfdist.allreduce.native.library import NOT_INSTALLED
from tfdist.allreduce.streams import communicators_of
from tfdist.strategies import transport
from tfdist.strategies.all_reduce import communication_options, cross_device_ops


def test_without_the_package_training_goes_through_tensorflow_and_a_line_says_so(train):
    trained = train("auto", native=False)
    assert [result["sent"] for result in trained.results] == [[], []]
    assert trained.ended.text.count("all-reduce: auto chose ring (tfdist-native is not installed)") == 1


@pytest.mark.full  # test_late_meetings.py looks for the line, too.
def test_with_the_package_a_line_says_that_it_is_chosen(train):
    trained = train("auto")
    assert all(result["sent"] for result in trained.results)
    assert trained.ended.text.count("all-reduce: auto chose tfdist-native") == 1


def test_if_one_worker_has_no_package_all_workers_go_through_tensorflow(train):
    trained = train("auto", "without")
    assert [result["sent"] for result in trained.results] == [[], []]
    assert (
        "[workers 0, 1] tfdist: all-reduce: auto chose ring through TensorFlow instead of tfdist-native: tfdist-native "
        "is not installed (worker 1)\n"
    ) in trained.ended.text
    assert "auto chose tfdist-native" not in trained.ended.text


def test_if_the_package_cannot_be_used_a_line_says_why_and_none_that_it_is_chosen(train):
    trained = train("auto", "old")
    assert [result["sent"] for result in trained.results] == [[], []]
    assert (
        "[workers 0, 1] tfdist: all-reduce: auto chose ring through TensorFlow instead of tfdist-native: tfdist-native "
        "0.1.0 is of another release of tfdist\n"
    ) in trained.ended.text
    assert "auto chose tfdist-native" not in trained.ended.text


def test_if_a_worker_cannot_be_reached_all_workers_go_through_tensorflow(train):
    trained = train("auto", "firewall")
    assert [result["sent"] for result in trained.results] == [[], []]
    assert re.search(
        r"\[workers 0, 1\] tfdist: all-reduce: auto chose ring through TensorFlow instead of tfdist-native: expected "
        r"worker 0 \(127\.0\.0\.1:\d+\) to be reached within 10 s \(worker 1\)\n",
        trained.ended.text,
    )
    assert "auto chose tfdist-native" not in trained.ended.text


def test_native_is_refused_on_all_workers_if_one_cannot_be_reached(train):
    sentence = refusal(train("native", "firewall", code=1))
    assert re.fullmatch(
        r"expected all workers to connect for the native transport, received: expected worker 0 \(127\.0\.0\.1:\d+\) "
        r"to be reached within 10 s \(worker 1\); let the network pass TCP connections between the workers on all "
        r"ports, or leave all_reduce\.transport out\.",
        sentence,
    )


def test_an_algorithm_that_is_named_goes_through_tensorflow_and_a_line_says_so(train):
    trained = train("auto", "algorithm:ring")
    assert [result["sent"] for result in trained.results] == [[], []]
    assert (
        "[workers 0, 1] tfdist: all-reduce: ring through TensorFlow, as asked; only the algorithm auto goes through "
        "tfdist-native\n"
    ) in trained.ended.text
    assert "auto chose" not in trained.ended.text


def refusal(trained: Trained) -> str:
    return next(line for line in trained.ended.text.splitlines() if "RuntimeError: " in line).partition("Error: ")[2]


@pytest.mark.parametrize("words", [pytest.param(("native",), marks=pytest.mark.full), ("native", "without")])
def test_native_is_refused_on_all_workers_if_one_has_no_package(words, train):
    trained = train(*words, native="without" in words, code=1)
    who = " (worker 1)" if "without" in words else ""
    assert refusal(trained) == (
        f"expected all workers to have the native transport, received: tfdist-native is not installed{who}; install "
        "tfdist-native with `pip install '.[native]'` in a checkout of tfdist on all workers, or leave "
        "all_reduce.transport out."
    )


def test_an_unknown_transport_is_refused():
    with pytest.raises(ValueError, match="transport to be one of auto, tensorflow, native, received 'gloo'"):
        tfdist.AllReduceOptions(transport="gloo")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 2}, "within one process, received: tfdist-native is not installed; install tfdist-native with"),
        (
            {"devices": 2, "algorithm": "hierarchical_copy"},
            "mirrored, received 0 GPUs and 'hierarchical_copy'",
        ),
    ],
)
def test_native_is_refused_where_a_mirrored_strategy_cannot_use_it(options, message, four_cpus, monkeypatch):
    monkeypatch.setattr(install, "why_missing", lambda: NOT_INSTALLED)
    devices = options.pop("devices")
    with pytest.raises(ValueError, match=message):
        tfdist.create_strategy(
            "mirrored", devices=devices, all_reduce=tfdist.AllReduceOptions(transport="native", **options)
        )


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical_copy", "reduction_to_one_device"])
def test_an_algorithm_of_a_mirrored_strategy_is_refused_with_native(algorithm):
    options = tfdist.AllReduceOptions(transport="native", algorithm=algorithm)
    with pytest.raises(ValueError, match=f"received 0 GPUs and '{algorithm}'; leave the transport or the alg"):
        cross_device_ops(options, num_gpus=0)


def test_an_algorithm_across_workers_is_refused_with_native():
    message = (
        "expected all_reduce.algorithm='auto' for all_reduce.transport='native', which has an algorithm of its own, "
        "received 'ring'; leave the algorithm or the transport out."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        communication_options(tfdist.AllReduceOptions(transport="native", algorithm="ring"), num_gpus=0)


@pytest.mark.parametrize("error", [OSError("no memory"), TimeoutError("no answer"), RuntimeError("no thread")])
def test_a_failure_within_a_process_does_not_end_an_automatic_choice(error, four_cpus, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(install, "why_missing", lambda: "")
    monkeypatch.setattr(install, "Listener", fail)
    monkeypatch.setattr(transport, "is_installed", lambda: True)
    with caplog.at_level("INFO", logger="tfdist"):
        strategy = tfdist.create_strategy("mirrored", devices=2)
    assert not communicators_of(strategy)
    (record,) = caplog.records
    assert record.getMessage() == f"all-reduce: auto chose ring through TensorFlow instead of tfdist-native: {error}"
    with pytest.raises(ValueError, match=f"within one process, received: {error}; leave all_reduce.transport out"):
        tfdist.create_strategy("mirrored", devices=2, all_reduce=tfdist.AllReduceOptions(transport="native"))


def test_a_rank_that_fails_says_more_than_those_that_wait_for_it(four_cpus, monkeypatch):
    too_many = OSError(f"eventfd: {os.strerror(errno.EMFILE)}")
    answers = iter([TimeoutError("expected replica 1 to share memory within 10 s"), too_many])

    class Listening:
        port, machine, local = 1, "", ""

        def __init__(self, *args, **kwargs):
            self.answer = next(answers)

        def connect(self, *args, **kwargs):
            raise self.answer

    monkeypatch.setattr(install, "why_missing", lambda: "")
    monkeypatch.setattr(install, "Listener", Listening)
    message = f"{too_many}; raise the limit of open files (ulimit -n), or leave all_reduce.transport out."
    with pytest.raises(ValueError, match=re.escape(message)):
        tfdist.create_strategy("mirrored", devices=2, all_reduce=tfdist.AllReduceOptions(transport="native"))
