"""Every operation of the transport is right in every dtype, through TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.processes import run


def test_every_operation_is_right_in_every_dtype(tmp_path: Path, with_native: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.native.every_operation"]
    ended = run(command, cwd=tmp_path, deadline_seconds=120.0, env=with_native)
    assert ended.code == 0
    assert "60 operations, 0 wrong" in ended.text
