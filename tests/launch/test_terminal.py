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


def test_prefixes_are_coloured_and_an_unfinished_progress_bar_is_shown(launcher: Launcher) -> None:
    program = r"""
os.write(1, b"1/9 a\b\b\b\b\b\r2/9 b")
wait_for("seen")
os.write(1, b"\r9/9 c\n")
"""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    try:
        started = launcher.start("--", str(launcher.write(program)), stdout=theirs, env={"TERM": "xterm"})
        prefix = b"\x1b[36m[worker 0]\x1b[0m "
        assert read_until(ours, b"\n") == prefix + b"2/9 b\x1b[0m\n"
        (launcher.place / "seen").touch()
        assert read_until(ours, b"\n") == prefix + b"9/9 c\x1b[0m\n"
        assert started.end().code == 0
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
