"""Runs `tfdist test` with several workers on this machine, which the launcher starts."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from tfdist.launch import LaunchSpec, launch
from tfdist.test.report import Report, ordered

# The tasks end by themselves before the launcher ends them.
_MORE_SECONDS = 15.0
_SIGNAL_CODES = (130, 143)


def run_alone(*, workers: int, timeout_seconds: float) -> list[Report]:
    """Starts the workers, and returns their reports, the one to show first.

    Args:
        workers: number of workers.
        timeout_seconds: time limit of each worker.

    Raises:
        KeyboardInterrupt: if a signal has ended the workers.
    """
    folder = Path(tempfile.mkdtemp(prefix="tfdist-test-"))
    try:
        lines = io.StringIO()
        spec = LaunchSpec(
            command=("-m", "tfdist.test", "--timeout-seconds", f"{timeout_seconds:g}", "--report", str(folder)),
            workers=workers,
            log_dir=folder / "logs",
            timeout_seconds=timeout_seconds + _MORE_SECONDS,
        )
        ended = launch(spec, out=lines, err=lines)
        if ended.exit_code in _SIGNAL_CODES:
            raise KeyboardInterrupt
        paths = [folder / f"worker-{index}.json" for index in range(workers)]
        found = [Report.from_json(path.read_text()) for path in paths if path.exists()]
        if not found or not paths[0].exists():
            where = f"{workers} workers"
            found.insert(
                0, Report(task="worker 0", where=where, error="worker 0 has no report", output=lines.getvalue())
            )
        return ordered(found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
