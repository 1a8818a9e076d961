"""Runs a program on a topology, in processes of its own, and reads what they have recorded."""

from __future__ import annotations

import io
import pickle
import sys
import tempfile
from pathlib import Path

from tfdist.launch import LaunchSpec, launch
from tfdist.verify.values import Record, Result, Run


def run_program(run: Run, *, python: str = sys.executable, timeout_seconds: float = 600.0) -> Result:
    """Runs a program's first steps on every worker of a topology.

    Args:
        run: the program and its topology.
        python: Python interpreter of the program.
        timeout_seconds: time limit of the run.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    path = run.folder / "run.pickle"
    path.write_bytes(pickle.dumps(run))
    lines = io.StringIO()
    spec = LaunchSpec(
        command=(python, "-m", "tfdist.verify.program", str(path)),
        workers=run.topology.workers,
        log_dir=run.folder / "logs",
        timeout_seconds=timeout_seconds,
        env={"CUDA_VISIBLE_DEVICES": "-1"},
    )
    ended = launch(spec, out=lines, err=lines)
    paths = sorted(run.folder.glob("record-*.pickle"))
    if ended.exit_code or len(paths) != run.topology.workers:
        return Result(error=reason_in(lines.getvalue(), exit_code=ended.exit_code))
    records: list[Record] = [pickle.loads(path.read_bytes()) for path in paths]
    return Result(records=tuple(records))


def reason_in(text: str, *, exit_code: int) -> str:
    r"""Returns the line of a log that says why a program ended, or its last line.

    Args:
        text: the lines of all processes.
        exit_code: exit code of the run.

    Example:
        >>> from tfdist.verify.runner import reason_in
        >>> reason_in("[worker 0] Traceback:\n[worker 0] ValueError: no data\n[worker 0] bye", exit_code=1)
        'ValueError: no data'
    """
    lines = [line.partition("] ")[2] or line for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("tfdist launch:")]
    if exit_code == 124:
        return "it did not end in time"
    for line in reversed(lines):
        head = line.partition(":")[0]
        if (head.isidentifier() and head.endswith(("Error", "Exception", "Interrupt"))) or line.startswith(
            "tfdist verify:"
        ):
            return line.strip()
    return lines[-1].strip() if lines else "it wrote nothing"


def scratch_folder() -> Path:
    """Makes a folder for the records of one verification."""
    return Path(tempfile.mkdtemp(prefix="tfdist-verify-"))
