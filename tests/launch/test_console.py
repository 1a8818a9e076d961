"""How lines of tasks are shown: names, colours, the live line, and lines that are left out."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable

import pytest

from tfdist.launch.console import Console
from tfdist.launch.screen import Screen, cells, cut

from .conftest import wait_until

NATIVE = "W0000 00:00:1795257882.676926   31522 dataset.cc:997] Input of GeneratorDatasetOp will not be optimized."


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def console_on(stream: io.StringIO, env: dict[str, str] | None = None, *, show_all: bool = False) -> Console:
    console = Console.on(stream, env or {}, show_all=show_all)
    console.begin(["worker 0", "worker 1"])
    return console


def what_is_seen(written: str) -> list[str]:
    """Returns the lines that a terminal shows after a text was written to it."""
    lines, column = [""], 0
    for char in written:
        if char == "\n":
            lines.append("")
            column = 0
        elif char == "\r":
            column = 0
        else:
            lines[-1] = lines[-1][:column] + char + lines[-1][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def test_in_a_file_each_line_has_its_prefix_and_no_colour() -> None:
    stream = io.StringIO()
    console = console_on(stream)
    console.show("worker 0", ["one", "\x1b[1;32mtwo\x1b[0m"])
    assert stream.getvalue() == "[worker 0] one\n[worker 0] two\n"
    assert not console.is_live


def test_tasks_have_different_colours_on_a_terminal() -> None:
    stream = Terminal()
    console = console_on(stream)
    console.show("worker 0", ["one"])
    console.show("worker 1", ["\x1b[31mtwo"])
    assert stream.getvalue() == "\x1b[36m[worker 0]\x1b[0m one\x1b[0m\n\x1b[33m[worker 1]\x1b[0m \x1b[31mtwo\x1b[0m\n"
    assert console.is_live


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_switched_off(env: dict[str, str]) -> None:
    stream = Terminal()
    console_on(stream, env).show("worker 0", ["one"])
    assert stream.getvalue() == "[worker 0] one\n"


def test_a_stream_whose_reader_has_ended_raises_no_error() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = console_on(Broken())
    console.show("worker 0", ["one"])
    console.show("worker 0", ["two"])


def test_characters_that_the_terminal_cannot_show_are_replaced() -> None:
    raw = io.BytesIO()
    console = Console.on(io.TextIOWrapper(raw, encoding="ascii"), {})
    console.begin(["worker 0"])
    console.show("worker 0", ["━"])
    assert raw.getvalue() == b"[worker 0] ?\n"


@pytest.mark.parametrize(
    ("show_all", "shown"), [(False, "[worker 0] done\n"), (True, f"[worker 0] {NATIVE}\n[worker 0] done\n")]
)
def test_log_lines_of_dependencies_are_counted_and_shown_only_when_asked_for(show_all: bool, shown: str) -> None:
    stream = io.StringIO()
    console = console_on(stream, show_all=show_all)
    console.show("worker 0", [NATIVE, "done"])
    assert stream.getvalue() == shown
    assert console.left_out == (0 if show_all else 1)


@pytest.mark.parametrize(
    ("show_all", "shown"),
    [(False, "[workers 0, 1] tfdist: a\n"), (True, "[worker 0] tfdist: a\n[worker 1] tfdist: a\n")],
)
def test_alike_log_lines_are_shown_once_unless_all_are_asked_for(show_all: bool, shown: str) -> None:
    stream = io.StringIO()
    console = console_on(stream, show_all=show_all)
    console.show("worker 0", ["tfdist: a"])
    console.show("worker 1", ["tfdist: a"])
    assert stream.getvalue() == shown


def test_a_log_line_that_no_other_task_writes_is_shown_after_a_while() -> None:
    stream = io.StringIO()
    console = Console(Screen(stream, is_live=False), colour=False, hold_seconds=0.2)
    console.begin(["worker 0", "worker 1"])
    console.show("worker 0", ["tfdist: a", "b"])
    assert stream.getvalue() == ""
    wait_until(lambda: stream.getvalue() == "[worker 0] tfdist: a\n[worker 0] b\n", "the lines are shown")


def test_a_line_waits_for_no_task_that_has_ended() -> None:
    stream = io.StringIO()
    console = console_on(stream)
    console.show("worker 0", ["tfdist: a"])
    console.leave("worker 1")
    assert stream.getvalue() == "[worker 0] tfdist: a\n"


@pytest.mark.parametrize(
    "end",
    [
        lambda console: console.flush(),
        lambda console: console.close(),
        lambda console: console.apart().__enter__(),
        lambda console: console.begin(["worker 0"]),
    ],
    ids=["flush", "the end", "the launcher writes", "a restart"],
)
def test_lines_are_not_held_any_longer_than(end: Callable[[Console], object]) -> None:
    stream = io.StringIO()
    console = console_on(stream)
    console.show("worker 0", ["tfdist: a"])
    end(console)
    assert stream.getvalue() == "[worker 0] tfdist: a\n"


def test_the_bar_of_the_chief_stays_under_the_lines_of_others_until_it_has_ended() -> None:
    stream = Terminal()
    console = console_on(stream, {"NO_COLOR": "1"})
    console.show("worker 0", ["Epoch 1/2"])
    console.show_unfinished("worker 0", "1/9 loss 0.5000", is_rewritten=True)
    console.show("worker 1", ["ready"])
    assert what_is_seen(stream.getvalue()) == [
        "[worker 0] Epoch 1/2",
        "[worker 1] ready",
        "[worker 0] 1/9 loss 0.5000",
    ]
    console.show_unfinished("worker 0", "2/9 loss 0.4", is_rewritten=True)
    console.show_unfinished("worker 1", "2/9 loss 0.4", is_rewritten=True)
    assert what_is_seen(stream.getvalue())[2:] == ["[worker 0] 2/9 loss 0.4"]
    with console.apart():
        stream.write("tfdist launch: a message\n")
    assert what_is_seen(stream.getvalue())[2:] == ["tfdist launch: a message", "[worker 0] 2/9 loss 0.4"]
    console.show("worker 0", ["9/9 done", "Epoch 2/2"])
    assert what_is_seen(stream.getvalue())[3:] == ["[worker 0] 9/9 done", "[worker 0] Epoch 2/2", ""]


def test_a_log_line_in_the_middle_of_the_bar_goes_above_it() -> None:
    stream = Terminal()
    console = console_on(stream, {"NO_COLOR": "1"})
    console.show_unfinished("worker 0", "1/9 loss 0.5", is_rewritten=True)
    console.show("worker 0", ["1/9 loss 0.5tfdist: a", f"1/9 loss 0.5{NATIVE}"])
    console.flush()
    assert what_is_seen(stream.getvalue()) == ["[worker 0] tfdist: a", "[worker 0] 1/9 loss 0.5"]


def test_a_bar_of_a_chief_that_ends_stays_as_a_line() -> None:
    stream = Terminal()
    console = console_on(stream, {"NO_COLOR": "1"})
    console.show_unfinished("worker 0", "1/9", is_rewritten=True)
    console.leave("worker 0")
    console.show("worker 1", ["failed"])
    assert what_is_seen(stream.getvalue()) == ["[worker 0] 1/9", "[worker 1] failed", ""]


def test_a_question_of_another_task_is_shown() -> None:
    stream = Terminal()
    console = console_on(stream, {"NO_COLOR": "1"})
    console.show_unfinished("worker 1", "password?", is_rewritten=False)
    assert stream.getvalue() == "[worker 1] password?\n"


def test_a_bar_is_cut_to_the_width_of_the_terminal() -> None:
    stream = io.StringIO()
    Screen(stream, is_live=True, columns=lambda: 11).live("\x1b[1m0123456789abc")
    assert stream.getvalue() == "\x1b[1m0123456789\x1b[0m"


@pytest.mark.parametrize(("text", "columns"), [("字字字", 5), ("e\u0301e", 1), ("abc", 0)])
def test_a_cut_text_takes_no_more_columns(text: str, columns: int) -> None:
    assert cells(cut(text, columns)) <= columns


def test_a_stream_that_nobody_reads_does_not_stop_the_lines_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdist.launch.console._PATIENCE_SECONDS", 0.1)
    blocked, go_on = threading.Event(), threading.Event()

    class Unread(io.StringIO):
        def write(self, text: str) -> int:
            blocked.set()
            go_on.wait(30)
            return len(text)

    console = console_on(Unread())
    writer = threading.Thread(target=console.show, args=("worker 0", ["a"]))
    writer.start()
    assert blocked.wait(30)
    begun = time.monotonic()
    with console.apart():
        assert time.monotonic() - begun < 10
    go_on.set()
    writer.join(30)
