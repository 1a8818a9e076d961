from __future__ import annotations

import io
import itertools
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.launch.output import MAX_LINE, Console, LineAssembler, Tail, last_state


def assemble(*chunks: bytes) -> list[str]:
    lines = LineAssembler()
    return [line for chunk in chunks for line in lines.feed(chunk)] + lines.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


def test_in_a_file_each_line_has_its_prefix_and_no_colour() -> None:
    stream = io.StringIO()
    console = Console.on(stream, {})
    console.show("worker 0", 0, ["one", "\x1b[1;32mtwo\x1b[0m"])
    assert stream.getvalue() == "[worker 0] one\n[worker 0] two\n"
    assert not console.live


def test_tasks_have_different_colours_on_a_terminal() -> None:
    stream = Terminal()
    console = Console.on(stream, {})
    console.show("worker 0", 0, ["one"])
    console.show("worker 1", 1, ["\x1b[31mtwo"])
    assert stream.getvalue() == "\x1b[36m[worker 0]\x1b[0m one\x1b[0m\n\x1b[33m[worker 1]\x1b[0m \x1b[31mtwo\x1b[0m\n"
    assert console.live


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_switched_off(env: dict[str, str]) -> None:
    stream: TextIO = Terminal()
    Console.on(stream, env).show("worker 0", 0, ["one"])
    assert isinstance(stream, Terminal)
    assert stream.getvalue() == "[worker 0] one\n"


def test_a_stream_whose_reader_has_ended_raises_no_error() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = Console.on(Broken(), {})
    console.show("worker 0", 0, ["one"])
    console.show("worker 0", 0, ["two"])


def test_characters_that_the_terminal_cannot_show_are_replaced() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Console.on(stream, {}).show("worker 0", 0, ["━"])
    assert raw.getvalue() == b"[worker 0] ?\n"
