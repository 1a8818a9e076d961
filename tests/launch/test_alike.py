"""Log lines that tasks write alike are shown once, and no line is lost or changes its place."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.launch.alike import AlikeLines, is_log_line, joint_name

WORKERS = ["worker 0", "worker 1", "worker 2"]
FOREVER = float("inf")


def test_a_line_of_all_tasks_is_shown_at_once() -> None:
    lines = AlikeLines(WORKERS[:2])
    lines.add("worker 0", "tfdist: a", now=0.0)
    assert lines.take(now=1.0) == []
    lines.add("worker 1", "tfdist: a", now=1.0)
    assert lines.take(now=1.0) == [(["worker 0", "worker 1"], "tfdist: a")]
    assert lines.due is None


def test_a_line_waits_for_the_others_only_so_long() -> None:
    lines = AlikeLines(WORKERS, seconds=2.0)
    lines.add("worker 0", "tfdist: a", now=0.0)
    lines.add("worker 2", "tfdist: a", now=1.0)
    assert lines.due == 2.0
    assert lines.take(now=2.0) == [(["worker 0", "worker 2"], "tfdist: a")]
    lines.add("worker 1", "tfdist: a", now=2.5)
    assert lines.take(now=4.5) == [(["worker 1"], "tfdist: a")]


def test_lines_in_which_workers_differ_are_all_shown() -> None:
    lines = AlikeLines(WORKERS[:2])
    for name in WORKERS[:2]:
        lines.add(name, f"tfdist: {name} starts", now=0.0)
    assert lines.take(now=FOREVER) == [
        (["worker 0"], "tfdist: worker 0 starts"),
        (["worker 1"], "tfdist: worker 1 starts"),
    ]


def test_what_a_program_prints_is_neither_held_nor_joined() -> None:
    lines = AlikeLines(WORKERS[:2])
    for name in WORKERS[:2]:
        lines.add(name, "ready", now=0.0)
    assert lines.take(now=0.0) == [(["worker 0"], "ready"), (["worker 1"], "ready")]


def test_a_task_that_writes_a_line_twice_is_shown_twice() -> None:
    lines = AlikeLines(WORKERS[:2])
    for name in ("worker 0", "worker 0", "worker 1"):
        lines.add(name, "tfdist: a", now=0.0)
    assert lines.take(now=FOREVER) == [(["worker 0", "worker 1"], "tfdist: a"), (["worker 0"], "tfdist: a")]


def test_nobody_waits_for_a_task_that_has_ended() -> None:
    lines = AlikeLines(WORKERS)
    for name in WORKERS[:2]:
        lines.add(name, "tfdist: a", now=0.0)
    lines.leave("worker 2")
    assert lines.take(now=0.0) == [(["worker 0", "worker 1"], "tfdist: a")]


def test_the_line_of_a_task_that_has_ended_can_still_be_joined() -> None:
    lines = AlikeLines(WORKERS[:2])
    lines.add("worker 0", "tfdist: a", now=0.0)
    lines.leave("worker 0")
    assert lines.take(now=0.0) == []
    lines.add("worker 1", "tfdist: a", now=1.0)
    assert lines.take(now=1.0) == [(["worker 0", "worker 1"], "tfdist: a")]


def test_a_single_task_waits_for_nobody() -> None:
    lines = AlikeLines(["worker 0"])
    lines.add("worker 0", "tfdist: a", now=0.0)
    assert lines.take(now=0.0) == [(["worker 0"], "tfdist: a")]


@given(st.lists(st.tuples(st.sampled_from(WORKERS), st.sampled_from(["tfdist: a", "tfdist: b", "c"])), max_size=30))
def test_each_task_keeps_its_lines_in_their_order(written: list[tuple[str, str]]) -> None:
    lines, taken = AlikeLines(WORKERS, seconds=3.0), []
    for number, (name, line) in enumerate(written):
        lines.add(name, line, now=float(number))
        taken += lines.take(now=float(number))
    taken += lines.take(now=FOREVER)
    for name in WORKERS:
        assert [line for names, line in taken if name in names] == [line for one, line in written if one == name]
    assert all(max(Counter(names).values()) == 1 for names, _ in taken)


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("tfdist: a", True),
        ("WARNING:tensorflow:a", True),
        ("/home/me/train.py:3: UserWarning: a", True),
        ("a.py:3: Warning: b", True),
        ("step 3: loss 4", False),
        ("Epoch 1/3", False),
    ],
)
def test_log_lines_are_known(line: str, is_one: bool) -> None:
    assert is_log_line(line) == is_one


def test_many_tasks_have_a_short_name() -> None:
    assert joint_name([f"worker {index}" for index in (3, 1, 2, 0)]) == "workers 0-3"
    assert joint_name(["worker 0", "worker 1", "worker 7"]) == "workers 0, 1, 7"
