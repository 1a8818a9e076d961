"""Two runs never share a directory of log files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tfdist.launch.log_files import make_default_log_dir, only_run_in

from .conftest import Launcher


def test_a_run_in_the_directory_of_another_is_refused_until_that_ends(tmp_path: Path) -> None:
    with (
        only_run_in(tmp_path),
        pytest.raises(ValueError, match=r"^expected --log-dir to be a directory that no other run uses, received"),
        only_run_in(tmp_path),
    ):
        pass
    with only_run_in(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_second_launcher_leaves_the_logs_of_the_first_as_they_are(launcher: Launcher) -> None:
    program = launcher.write('print("first", flush=True)\nsay("ready")\nwait_for("refused")\nprint("last")\n')
    first = launcher.start("--log-dir", "logs", "--", str(program))
    first.wait_for("ready")
    second = launcher.run("--log-dir", "logs", "--", "true")
    assert second.code == 2
    assert "expected --log-dir to be a directory that no other run uses" in second.err
    (launcher.place / "refused").touch()
    assert first.end().code == 0
    assert launcher.log("worker-0.log") == "first\nlast\n"


def test_two_launchers_with_one_number_in_one_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(time, "strftime", lambda form: "20261129-100503")
    assert [str(make_default_log_dir()) for _ in range(3)] == [
        "tfdist-logs/20261129-100503-1", "tfdist-logs/20261129-100503-1-1", "tfdist-logs/20261129-100503-1-2",
    ]  # fmt: skip
