"""The output of a cell: which lines it shows, and how the progress bar is written again."""

from __future__ import annotations

import io

from tfdist.notebook.cell import Cell


def shown(*lines: str, bars: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    stream = io.StringIO()
    cell = Cell(stream, chief="worker 0")
    for bar in bars:
        cell.live(bar)
    cell.write("".join(f"{line}\n" for line in lines))
    cell.end()
    return stream.getvalue(), cell.last_lines


def test_a_shorter_state_of_the_bar_hides_a_longer_one() -> None:
    text, last = shown("[worker 1] on", bars=("[worker 0] 1/2 ━ 12s 1s/step", "[worker 0] 2/2 ━ 0s 1s/step"))
    assert text == (
        "[worker 0] 1/2 ━ 12s 1s/step\r[worker 0] 2/2 ━ 0s 1s/step "
        "\r[worker 1] on              \n[worker 0] 2/2 ━ 0s 1s/step\n"
    )
    assert last == ["[worker 1] on"]


def test_colours_take_no_room_in_the_bar() -> None:
    text, _ = shown(bars=("\x1b[36m[worker 0]\x1b[0m \x1b[1m1/2\x1b[0m ━ 1s/step", "[worker 0] 2/2 ━ 1s/step"))
    assert text.endswith("\r[worker 0] 2/2 ━ 1s/step\n")


def test_bars_of_other_workers_and_the_report_of_the_launcher_are_left_out() -> None:
    report = ("  last lines of worker 1 (logs/worker-1.log):", "    ValueError: no", "  worker 0 ended by itself")
    text, _ = shown("[worker 1] 1/2 ━ 1s/step", "[worker 1] 3/4 of the files are read", *report)
    assert text == "[worker 1] 3/4 of the files are read\n  worker 0 ended by itself\n"


def test_a_bar_that_has_ended_is_a_line_but_not_one_of_the_last_lines() -> None:
    assert shown("[worker 0] 2/2 ━ 1s/step") == ("[worker 0] 2/2 ━ 1s/step\n", [])


def test_keras_2_bars_and_unknown_lengths_of_other_workers_are_left_out() -> None:
    text, _ = shown("[worker 1]  1/40 [==>...........] - ETA: 2s", "[worker 1] 7/Unknown 1s 3ms/step", "[worker 1] on")
    assert text == "[worker 1] on\n"
