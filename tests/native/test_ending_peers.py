"""The end of a rank is known at once: behind bytes that wait for a third rank, and with forked processes."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from tests.native import build
from tests.processes import run

PROGRAM = Path(__file__).with_name("ending_peers.py")
DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, UNAVAILABLE = 4, 8, 10, 14
# Operations have 20 s; the end of a rank is known within 0.5 s, if this machine has time for the processes.
SECONDS = 5.0

on_channels = pytest.mark.parametrize("channel", ["shared memory", "tcp"])


@dataclasses.dataclass(frozen=True)
class Seen:
    """What rank 0 has seen: the code of its operation, how long after the end of rank 1, and the message."""

    code: int
    seconds: float
    message: str
    text: str


def seen(tmp_path: Path, channel: str, case: str) -> Seen:
    library = build.package() / "tfdist_native" / "libtfdist_native.so"
    # The option keeps the program from a process that has threads already: it forks.
    command = [sys.executable, "-u", str(PROGRAM), str(library), channel, case]
    ended = run(command, cwd=tmp_path, deadline_seconds=60.0)
    found = re.search(r"^rank 0: (\d+) (-?[\d.]+) (.*)$", ended.text, re.MULTILINE)
    assert found, f"rank 0 has printed no result:\n{ended.text}"
    return Seen(int(found[1]), float(found[2]), found[3], ended.text)


def lost(channel: str) -> str:
    return "lost rank 1: its process ended" if channel == "shared memory" else "lost rank 1: "


@on_channels
@pytest.mark.parametrize("case", ["killed", "killed with many"])
def test_a_killed_rank_is_named_although_its_summands_wait_for_another_rank(tmp_path, channel, case):
    found = seen(tmp_path, channel, case)
    assert found.code == UNAVAILABLE
    assert lost(channel) in found.message
    assert found.seconds < SECONDS


# In the second case the channel to the other rank is full, so that the array cannot be sent.
@on_channels
@pytest.mark.parametrize("case", ["killed with few", "killed with few on the way"])
def test_a_killed_rank_is_named_although_all_that_it_owes_has_come_and_another_rank_has_not_started(
    tmp_path, channel, case
):
    found = seen(tmp_path, channel, case)
    assert found.code == UNAVAILABLE
    assert "lost rank 1: " in found.message
    assert found.seconds < SECONDS


@on_channels
def test_the_rank_that_was_killed_first_is_named_by_one_that_was_stopped_until_another_had_ended_too(tmp_path, channel):
    found = seen(tmp_path, channel, "killed while one is stopped")
    assert found.code == UNAVAILABLE
    assert "lost rank 2: " in found.message


@on_channels
def test_nobody_is_named_if_a_rank_has_left_that_is_not_needed(tmp_path, channel):
    found = seen(tmp_path, channel, "leaves")
    assert (found.code, found.message) == (0, "")


# With many elements the channel is full in the middle of a fragment.
@on_channels
@pytest.mark.parametrize("many", ["", " with many"])
@pytest.mark.parametrize(
    ("case", "code", "message"),
    [
        ("aborts", ABORTED, "the step of rank 1 failed"),
        ("gives up", DEADLINE_EXCEEDED, "within 0.5 s, waited for rank 2"),
        ("closes", ABORTED, "rank 1 has closed its communicator"),
    ],
)
def test_a_failure_is_told_although_the_summands_before_it_wait_for_another_rank(
    tmp_path, channel, case, many, code, message
):
    found = seen(tmp_path, channel, case + many)
    assert found.code == code
    assert message in found.message
    assert found.seconds < SECONDS


@on_channels
@pytest.mark.parametrize("case", ["killed after a fork", "closed after a fork", "closed with copies"])
def test_a_rank_has_ended_although_a_process_that_it_has_forked_lives_on(tmp_path, channel, case):
    found = seen(tmp_path, channel, case)
    assert found.code == UNAVAILABLE
    assert "lost rank 1: " in found.message
    assert found.seconds < SECONDS


@on_channels
def test_a_forked_process_cannot_use_the_connections_and_its_parent_still_can(tmp_path, channel):
    found = seen(tmp_path, channel, "used in a fork")
    assert found.code == ABORTED
    assert "rank 0: child 110\n" in found.text
    assert re.findall(r"^rank (\d): 0 ", found.text, re.MULTILINE) in (["0", "1"], ["1", "0"])


@on_channels
def test_a_failure_is_told_although_the_channel_is_full(tmp_path, channel):
    found = seen(tmp_path, channel, "aborts with a full channel")
    assert (found.code, found.message) == (ABORTED, "m" * 500)
    assert found.seconds < SECONDS


def test_a_rank_without_memory_fails_its_operations_on_all_ranks_and_lives_on(tmp_path):
    found = seen(tmp_path, "shared memory", "without memory")
    assert found.code == RESOURCE_EXHAUSTED
    assert found.message == "rank 0 has failed: std::bad_alloc"
    assert found.seconds < SECONDS
