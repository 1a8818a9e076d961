"""The output of a launcher on a terminal."""

from __future__ import annotations

import os
import pty
import select
import time
import tty

from .conftest import DEADLINE_SECONDS, Launcher


def read_until(terminal: int, text: bytes) -> bytes:
    """Reads from a terminal until a text appears, and returns all that was read."""
    end = time.monotonic() + DEADLINE_SECONDS
    seen = b""
    while text not in seen:
        readable, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        if not readable:
            raise AssertionError(f"expected {text!r} on the terminal, received {seen!r}")
        seen += os.read(terminal, 65536)
    return seen


def read_rest(terminal: int) -> bytes:
    """Returns what can be read from a terminal at once."""
    seen = b""
    while select.select([terminal], [], [], 0)[0]:
        seen += os.read(terminal, 65536)
    return seen


def test_the_progress_bar_of_the_chief_is_rewritten_in_place(launcher: Launcher) -> None:
    program = r"""
if index == 0:
    os.write(1, b"1/9 a\b\b\b\b\b\r2/9 loss 1")
    wait_for("seen")
    os.write(1, b"\b\b\b\b\b\b\b\b\b\b\r9/9 c\n")
else:
    os.write(1, b"1/9 a\r2/9 b")
    wait_for("seen")
    os.write(1, b"\r9/9 d\n")
"""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    try:
        task = str(launcher.write(program))
        started = launcher.start("--workers", "2", "--", task, stdout=theirs, env={"TERM": "xterm"})
        prefixes = [b"\x1b[36m[worker 0]\x1b[0m ", b"\x1b[33m[worker 1]\x1b[0m "]
        bar = prefixes[0] + b"2/9 loss 1\x1b[0m"
        assert read_until(ours, b"loss 1\x1b[0m") == bar
        (launcher.place / "seen").touch()
        assert started.end().code == 0
        seen = read_until(ours, b"9/9 c\x1b[0m\n") + read_rest(ours)
        assert prefixes[0] + b"9/9 c\x1b[0m\n" in seen
        assert prefixes[1] + b"9/9 d\x1b[0m" in seen
        assert b"2/9 b" not in seen
    finally:
        os.close(ours)
        os.close(theirs)


def test_no_color_is_honoured(launcher: Launcher) -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    try:
        env = {"TERM": "xterm", "NO_COLOR": "1"}
        started = launcher.start("--", str(launcher.write("print('plain')")), stdout=theirs, env=env)
        assert read_until(ours, b"\n") == b"[worker 0] plain\n"
        assert started.end().code == 0
    finally:
        os.close(ours)
        os.close(theirs)


def test_an_unfinished_line_is_not_repeated_in_a_file(launcher: Launcher) -> None:
    program = r"""
for step in range(120):
    os.write(1, f"{step}/120\r".encode())
    time.sleep(0.01)
"""
    assert launcher.run(program=program).out == "[worker 0] 119/120\n"


def test_tasks_learn_whether_their_bar_is_shown_while_it_changes(launcher: Launcher) -> None:
    program = "print('live' if os.environ['TFDIST_LIVE_PROGRESS'] else 'not')"
    assert launcher.run(program=program, env={"TFDIST_LIVE_PROGRESS": "1"}).out == "[worker 0] not\n"
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    try:
        env = {"TERM": "xterm", "NO_COLOR": "1"}
        started = launcher.start("--", str(launcher.write(program)), stdout=theirs, env=env)
        assert read_until(ours, b"\n") == b"[worker 0] live\n"
        assert started.end().code == 0
    finally:
        os.close(ours)
        os.close(theirs)
