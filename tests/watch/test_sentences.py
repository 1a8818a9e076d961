"""The lines about a stall name worker, step and what to do, and differ for each kind of stall."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tfdist.cluster.probe import NO_REPLY, REFUSED, SILENT
from tfdist.watch.phases import CALLBACKS, OUTSIDE, TRACING, TRAINING
from tfdist.watch.sentences import report
from tfdist.watch.stall import judge
from tfdist.watch.standing import SERVES, Standing

LATE = {"seconds": 70.0, "limit": 60.0}
SILENT_FOR = {"silent_seconds": 20.0, "address": "b:2222"}


def lines(*others: dict[str, Any], own: dict[str, Any] | None = None, deadline: float | None = 300.0) -> str:
    given = [{"waits": "batch", **LATE, **(own or {})}, *others]
    standings = [Standing(**{"worker": i, "phase": TRAINING, "step": 9, **LATE, **one}) for i, one in enumerate(given)]
    found = judge(standings, own=0)
    assert found is not None
    return report(found, own=0, usual_step_seconds=0.25, deadline_seconds=deadline)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"reply": SILENT, **SILENT_FOR}, r"worker 1 is stopped: .* at b:2222, .* answers nothing, .*kill -CONT"),
        ({"state": "T", "pid": 77, **SILENT_FOR}, r"worker 1 is stopped: .* process 77 is in state T"),
        ({"reply": REFUSED, **SILENT_FOR}, r"worker 1 has ended: no process listens at b:2222"),
        ({"reply": NO_REPLY, **SILENT_FOR}, r"worker 1 is out of reach: b:2222 replies nothing .* link to it is cut"),
        ({"reply": SERVES, **SILENT_FOR}, r"worker 1 runs no Python code: .* holds the global interpreter lock"),
        ({"reply": SERVES, "is_heard": False, **SILENT_FOR}, r"worker 1 has sent no record, .* allow UDP"),
        ({"waits": "", "data_thread": "d.py:3 in rows"}, r"worker 1 waits for its own data: .* at d.py:3 in rows"),
        (
            {"phase": CALLBACKS, "at": "c.py:4 in save"},
            r"worker 1 runs callbacks or saves for 70 s.* at c.py:4 in save",
        ),
        ({"phase": OUTSIDE}, r"worker 1 runs another part of the program than fit"),
        ({"phase": TRACING}, r"worker 1 traces or compiles a function for 70 s, more than 60 s"),
    ],
)
def test_the_cause_is_told_from_others(other, sentence):
    text = lines(other)
    assert re.search(sentence, text)
    assert text.startswith("stall: no step for 70 s, and a step usually takes 0.25 s; worker 1 has not finished step 9")
    assert "worker 0 waits for the others." in text


def test_a_worker_that_computes_is_told_from_one_without_data():
    text = lines({"waits": "", "counts_batches": True}, own={"waits": "sum"})
    assert "worker 1 has its batch, but has not computed its step for 70 s" in text


def test_a_process_alone_waits_for_no_other_worker():
    text = lines(own={"waits": None, "at": "train.py:3 in step"})
    assert "worker 0 has not ended its step for 70 s, more than 60 s: it computes, or waits for its data" in text
    assert "other" not in text


def test_workers_that_all_wait_point_to_the_connection():
    text = lines({"waits": "sum"}, own={"waits": "sum"})
    assert "workers 0, 1 have not finished step 9" in text
    assert text.count("a connection between two workers probably hangs") == 2


def test_a_worker_that_reaches_nobody_suspects_its_own_link():
    cut = {"reply": NO_REPLY, **SILENT_FOR}
    text = lines(cut, cut)
    assert text.count("the link of this machine is probably cut") == 2
    assert "link of this machine" not in lines(cut, {"waits": "batch"})


def test_all_workers_that_have_not_reached_the_step_are_named():
    text = lines({"waits": "", "step": 8}, {"phase": CALLBACKS}, {"waits": "batch"})
    assert "workers 1, 2 have not finished step 9" in text


def test_the_deadline_is_told_if_there_is_one():
    assert "the job ends with exit code 75 in 300 s" in lines({"waits": ""})
    assert "exit code" not in lines({"waits": ""}, deadline=None)
