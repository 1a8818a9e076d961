"""Random operations of many ranks are right, and ranks that are killed are named: native/tests/stress.cc."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.native import build

FULL = pytest.mark.full
DEADLINE_SECONDS = 600.0
# Under ThreadSanitizer 100,000 operations of three ranks take 23 minutes while another such program runs on two cores.
DEADLINE_SECONDS_OF_FULL = 4 * 3600.0


def stress(sanitizer: str, *words: str, sends_on_a_second_thread: bool = False) -> str:
    program = build.stress(sanitizer)
    # Every message, or none.
    env = {**os.environ, "TFDIST_NATIVE_SENDER_BYTES": "0" if sends_on_a_second_thread else str(2**64 - 1)}
    seconds = DEADLINE_SECONDS_OF_FULL if sanitizer or int(words[1]) > 10_000 else DEADLINE_SECONDS
    ended = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=seconds, env=env)
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0
    assert ended.stderr == ""
    return ended.stdout


# Ranks of two hosts add up within each host first.
@pytest.mark.parametrize(
    ("channel", "ranks", "second"),
    [("shared memory", 3, False), ("tcp", 3, False), ("hosts", 4, False), ("tcp", 4, True), ("hosts", 4, True)],
)
@pytest.mark.parametrize(
    ("sanitizer", "number"),
    [
        ("", 300),
        pytest.param("", 100_000, marks=FULL),
        pytest.param("address", 100_000, marks=FULL),
        pytest.param("thread", 100_000, marks=FULL),
    ],
)
def test_random_operations_in_any_order_are_right(sanitizer, number, channel, ranks, second):
    words = ["threads", str(number), str(ranks), "1", channel]
    assert (
        stress(sanitizer, *words, sends_on_a_second_thread=second)
        == f"{number} operations, {ranks} ranks, {channel}: right\n"
    )


# Two inputs, and blocks of 2,048 elements for more, have loops of their own.
@pytest.mark.parametrize("inputs", ["1", "2", "5"])
@pytest.mark.parametrize("sanitizer", ["", pytest.param("address", marks=FULL)])
def test_sums_of_every_dtype_are_right_at_every_address(sanitizer, inputs):
    assert stress(sanitizer, "sums", "4099", inputs, "3") == f"192 sums of {inputs} arrays of 4099 elements: right\n"


@pytest.mark.parametrize(
    ("channel", "second"),
    [("shared memory", False), ("tcp", False), ("hosts", False), ("tcp", True), ("hosts", True)],
)
@pytest.mark.parametrize(
    ("sanitizer", "number"),
    [("", 10), *(pytest.param(sanitizer, 200, marks=FULL) for sanitizer in ("", "address", "thread"))],
)
def test_a_killed_rank_is_named_by_all_others(sanitizer, number, channel, second):
    words = ["kill", str(number), "4", "2", channel]
    ended = stress(sanitizer, *words, sends_on_a_second_thread=second)
    assert ended.startswith(f"{number} ranks of 4 killed, {channel}: each named by all others, ")
