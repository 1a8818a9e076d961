"""Reads the environment variables with which `tfdist launch` describes the launch to each of its tasks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

LAUNCH_ID = "TFDIST_LAUNCH_ID"
ATTEMPT = "TFDIST_ATTEMPT"
PROGRESS_FILE = "TFDIST_PROGRESS_FILE"
LIVE = "TFDIST_LIVE_PROGRESS"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launched:
    """The launch that started this process.

    Args:
        launch_id: the name of the launch, which no other launch has.
        attempt: 0 for the first start of the tasks, 1 after the first restart, and so on. The tasks that were started
            together have the same launch id and attempt; these tasks are called an incarnation of the cluster.
        progress_file: where this task records its steps, with `tfdist.cluster.ProgressFile`; None if the
            launcher does not ask for the steps.
        is_live: whether the launcher shows the progress bar of the chief while it changes, as on a terminal.

    Example:
        >>> Launched(launch_id="4f1c", attempt=2).incarnation
        '4f1c.2'
    """

    launch_id: str
    attempt: int = 0
    progress_file: Path | None = None
    is_live: bool = False

    @property
    def incarnation(self) -> str:
        """The launch id and the attempt as one word, which differs between any two incarnations."""
        return f"{self.launch_id}.{self.attempt}"


def launched(environment: Mapping[str, str] | None = None) -> Launched | None:
    """Returns the launch that started this process; None if the process was started in another way.

    Args:
        environment: the environment variables to read; None reads those of this process.

    Raises:
        ValueError: if TFDIST_ATTEMPT is not a whole number.

    Example:
        >>> launched({"TFDIST_LAUNCH_ID": "4f1c", "TFDIST_ATTEMPT": "1"})
        Launched(launch_id='4f1c', attempt=1, progress_file=None, is_live=False)
        >>> launched({}) is None
        True
    """
    variables = os.environ if environment is None else environment
    launch_id = variables.get(LAUNCH_ID, "")
    if not launch_id:
        return None
    attempt = variables.get(ATTEMPT, "") or "0"
    if not (attempt.isascii() and attempt.isdigit()):
        raise ValueError(
            f"expected the environment variable {ATTEMPT} to be a whole number, received {attempt!r}; "
            "unset it, or start the program with `tfdist launch`."
        )
    path = variables.get(PROGRESS_FILE, "")
    return Launched(
        launch_id=launch_id,
        attempt=int(attempt),
        progress_file=Path(path) if path else None,
        is_live=bool(variables.get(LIVE)),
    )
