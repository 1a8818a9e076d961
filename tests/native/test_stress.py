"""Random operations of many ranks are right, and ranks that are killed are named: native/tests/stress.cc."""

from __future__ import annotations

import subprocess

import pytest

from tests.native import build

FULL = pytest.mark.full
# 100,000 operations of four ranks take 80 minutes of one processor under ThreadSanitizer.
DEADLINE_SECONDS = 4 * 3600.0


def stress(sanitizer: str, *words: str) -> str:
    program = build.stress(sanitizer)
    ended = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0
    assert ended.stderr == ""
    return ended.stdout


# Ranks of two hosts add up within each host first.
@pytest.mark.parametrize(("channel", "ranks"), [("shared memory", 3), ("tcp", 3), ("hosts", 4)])
@pytest.mark.parametrize(
    ("sanitizer", "number"),
    [
        ("", 300),
        pytest.param("", 100_000, marks=FULL),
        pytest.param("address", 100_000, marks=FULL),
        pytest.param("thread", 100_000, marks=FULL),
    ],
)
def test_random_operations_in_any_order_are_right(sanitizer, number, channel, ranks):
    words = ["threads", str(number), str(ranks), "1", channel]
    assert stress(sanitizer, *words) == f"{number} operations, {ranks} ranks, {channel}: right\n"


# Two inputs, and blocks of 2,048 elements for more, have loops of their own.
@pytest.mark.parametrize("inputs", ["1", "2", "5"])
@pytest.mark.parametrize("sanitizer", ["", pytest.param("address", marks=FULL)])
def test_sums_of_every_dtype_are_right_at_every_address(sanitizer, inputs):
    assert stress(sanitizer, "sums", "4099", inputs, "3") == f"192 sums of {inputs} arrays of 4099 elements: right\n"


@pytest.mark.parametrize("channel", ["shared memory", "tcp", "hosts"])
@pytest.mark.parametrize(
    ("sanitizer", "number"),
    [("", 10), *(pytest.param(sanitizer, 200, marks=FULL) for sanitizer in ("", "address", "thread"))],
)
def test_a_killed_rank_is_named_by_all_others(sanitizer, number, channel):
    words = ["kill", str(number), "4", "2", channel]
    assert stress(sanitizer, *words).startswith(f"{number} ranks of 4 killed, {channel}: each named by all others, ")
