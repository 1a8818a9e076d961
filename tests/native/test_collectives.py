"""The functions of tfdist.collectives over the native transport return what they return over TensorFlow's."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.processes import launch
from tests.test_collectives import check_collectives


def test_collectives_work_in_a_step_and_outside_of_one(tmp_path: Path, with_native: dict[str, str]) -> None:
    program = Path(__file__).parents[1] / "collectives_program.py"
    command = ["--workers", "2", "--", sys.executable, str(program), "native"]
    ended = launch(*command, cwd=tmp_path, deadline_seconds=120.0, env=with_native)
    assert ended.code == 0
    check_collectives(ended.text)
