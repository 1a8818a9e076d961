from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.launch.output import MAX_LINE, LineAssembler, Tail, last_state


def assemble(*chunks: bytes) -> list[str]:
    lines = LineAssembler()
    return [line for chunk in chunks for line in lines.feed(chunk)] + lines.close()


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\n\r\n", ["one", ""]),
        (b"without an end", ["without an end"]),
        (b"1/3\r2/3\r3/3\n", ["3/3"]),
        (b"1/3\r2/3\r", ["2/3"]),
        (b"1/2 loss 3\b\b\b\b\b\b\b\b\b\b\r2/2 loss 1\n", ["2/2 loss 1"]),
        (b"\xff\n", ["\ufffd"]),
        (b"\x1b[2J\x1b[31mred\x1b[0m\x1b[1A\n", ["\x1b[31mred\x1b[0m"]),
        (b"", []),
    ],
)
def test_a_line_is_shown_in_its_last_state(written: bytes, lines: list[str]) -> None:
    assert assemble(written) == lines


def test_a_character_may_arrive_in_two_parts() -> None:
    assert assemble("é".encode()[:1], "é".encode()[1:] + b"\n") == ["é"]


@given(st.text(alphabet="ab\r\b\né\x1b[mK", max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_the_chunks_in_which_output_arrives_do_not_matter(text: str, cuts: list[int]) -> None:
    data = text.encode()
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    chunks = [data[start:end] for start, end in itertools.pairwise(edges)]
    assert assemble(*chunks) == assemble(data)


def test_a_long_progress_bar_takes_no_memory() -> None:
    lines = LineAssembler()
    for step in range(10_000):
        lines.feed(f"{step}/10000 {'=' * 50}\r".encode())
    assert len(lines._pending) < 100
    assert lines.partial.startswith("9999/10000")


def test_an_endless_line_is_cut() -> None:
    assert [len(line) for line in assemble(b"x" * (MAX_LINE + 5))] == [MAX_LINE, 5]


def test_a_line_that_is_overwritten_with_blanks_is_empty() -> None:
    assert last_state("50%\r   \r").strip() == ""


def test_a_tail_remembers_the_last_lines_only() -> None:
    tail = Tail(2)
    tail.extend(["a", "b", "c"])
    assert tail.lines == ["b", "c"]


@pytest.mark.parametrize(
    ("seconds", "line", "went_on"),
    [
        (0.5, "ValueError: of several", False),
        (2.0, "step 3", True),
        (2.0, "E0000 00:00:1795257845.115898   31274 cuda_platform.cc:52] failed call to cuInit", False),
        (2.0, "F0000 00:00:1795257845.115898   31274 agent.cc:52] the leader has died", False),
        (2.0, "Fatal Python error: Aborted", False),
        (2.0, '  File "train.py", line 3 in <module>', False),
        (2.0, "tfdist: the peers are gone", False),
    ],
)
def test_a_task_that_writes_on_after_a_traceback_has_handled_the_exception(
    seconds: float, line: str, went_on: bool
) -> None:
    tail = Tail()
    tail.extend(["Traceback (most recent call last):", "KeyError: 3"], at=10.0)
    tail.extend([line] * 2, at=10.0 + seconds)
    assert not tail.went_on
    tail.extend([line], at=10.0 + seconds)
    assert (tail.traceback_at, tail.went_on) == (10.0, went_on)
    tail.extend(["Traceback (most recent call last):"], at=20.0)
    assert (tail.traceback_at, tail.went_on) == (20.0, False)


@pytest.mark.parametrize(
    ("chunks", "is_rewritten"),
    [([b"1/3"], False), ([b"1/3\r2/3"], True), ([b"1/3\r", b"2/3"], True), ([b"1\b2", b"\n3"], False)],
)
def test_a_line_that_was_rewritten_is_known(chunks: list[bytes], is_rewritten: bool) -> None:
    lines = LineAssembler()
    for chunk in chunks:
        lines.feed(chunk)
    assert lines.is_rewritten == is_rewritten
