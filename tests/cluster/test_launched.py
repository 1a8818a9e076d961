from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.cluster.launched import Launched, launched


def test_a_task_of_the_launcher_knows_its_launch_attempt_and_progress_file() -> None:
    found = launched({"TFDIST_LAUNCH_ID": "ab", "TFDIST_ATTEMPT": "3", "TFDIST_PROGRESS_FILE": "/l/worker-0.progress"})
    assert found == Launched(launch_id="ab", attempt=3, progress_file=Path("/l/worker-0.progress"))
    assert found is not None
    assert found.incarnation == "ab.3"


@pytest.mark.parametrize("variables", [{}, {"TFDIST_LAUNCH_ID": ""}, {"TFDIST_ATTEMPT": "1"}])
def test_a_process_without_a_launch_id_was_not_launched(variables: dict[str, str]) -> None:
    assert launched(variables) is None


def test_a_launch_id_alone_is_the_first_attempt() -> None:
    assert launched({"TFDIST_LAUNCH_ID": "ab"}) == Launched(launch_id="ab", attempt=0)


@pytest.mark.parametrize("attempt", ["-1", "one", "1.5", "٣"])
def test_an_attempt_that_is_no_number_is_refused(attempt: str) -> None:
    with pytest.raises(ValueError, match=r"expected the environment variable TFDIST_ATTEMPT to be a whole number, "):
        launched({"TFDIST_LAUNCH_ID": "ab", "TFDIST_ATTEMPT": attempt})


def test_the_environment_of_this_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDIST_LAUNCH_ID", "own")
    monkeypatch.delenv("TFDIST_ATTEMPT", raising=False)
    monkeypatch.delenv("TFDIST_PROGRESS_FILE", raising=False)
    assert launched() == Launched(launch_id="own")
