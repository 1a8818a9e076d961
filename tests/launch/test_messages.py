"""The launcher's own lines do not hold up the launcher."""

from __future__ import annotations

import io
import os
import threading
import time

from tfdist.launch import messages
from tfdist.launch.messages import Messages


def test_lines_are_written_in_order_and_flushed_before_the_end():
    stream = io.StringIO()
    lines = Messages(stream)
    for number in range(100):
        lines.write(f"line {number}")
    lines.close()
    assert stream.getvalue() == "".join(f"tfdist launch: line {number}\n" for number in range(100))


def test_a_terminal_that_reads_nothing_holds_up_neither_a_line_nor_the_end(monkeypatch):
    monkeypatch.setattr(messages, "_CLOSE_SECONDS", 0.1)
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    lines, begun = Messages(stream), time.monotonic()
    try:
        for _ in range(100):
            lines.write("x" * 10_000)
        lines.close()
        # The lines would wait for ever.
        assert time.monotonic() - begun < 60
        assert any(thread.name == "tfdist-messages" for thread in threading.enumerate())
    finally:
        # The thread ends with a broken pipe.
        os.close(reader)


class WithoutReader(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_stream_whose_reader_has_ended_is_no_error():
    lines = Messages(WithoutReader())
    lines.write("nobody reads this")
    lines.write("nor this")
    lines.close()
    assert not lines._thread.is_alive()
