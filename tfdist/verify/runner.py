"""Runs a program on a topology, in processes of its own, and reads what they have recorded."""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tfdist.launch import LaunchSpec, launch
from tfdist.verify.values import PREFIX, Record, Result, Run

# The launcher's exit codes after SIGINT and SIGTERM, which it has passed on to the processes.
_INTERRUPTED, _TERMINATED = 130, 143
_TIMEOUT = 124

_OF_TENSORFLOW = re.compile(
    r"(\[[^]]*\] )?([0-9]{4}-[0-9]{2}-[0-9]{2} .*: [IWE] |[IWE]0000 |WARNING: All log|To enable the foll)"
)


def run_program(run: Run, *, python: Sequence[str] = (sys.executable,), timeout_seconds: float = 600.0) -> Result:
    """Runs a program's first steps on every worker of a topology.

    Args:
        run: the program and its topology.
        python: Python interpreter of the program, and its options.
        timeout_seconds: time limit of the run.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    path = run.folder / "run.pickle"
    path.write_bytes(pickle.dumps(run))
    lines = io.StringIO()
    spec = LaunchSpec(
        command=(*python, "-m", "tfdist.verify.program", str(path)),
        workers=run.topology.workers,
        log_dir=run.folder / "logs",
        timeout_seconds=timeout_seconds,
        # Otherwise each run of a program that reads a set of words, say, has them in another order.
        env={"CUDA_VISIBLE_DEVICES": "-1", "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED") or "0"},
    )
    ended = launch(spec, out=lines, err=lines)
    if ended.exit_code in (_INTERRUPTED, _TERMINATED):
        raise KeyboardInterrupt
    paths = sorted(run.folder.glob("record-*.pickle"))
    if ended.exit_code or len(paths) != run.topology.workers:
        text = lines.getvalue()
        return Result(error=reason_in(text, exit_code=ended.exit_code), output=last_lines(text))
    records: list[Record] = [pickle.loads(path.read_bytes()) for path in paths]
    return Result(records=tuple(records))


def last_lines(text: str, *, count: int = 20) -> str:
    """Returns the last lines of a log, without those of the launcher and of TensorFlow's own log.

    Args:
        text: the lines of all processes.
        count: number of lines.
    """
    lines = [line for line in text.splitlines() if not line.startswith("tfdist launch:")]
    return "\n".join([line for line in lines if not _OF_TENSORFLOW.match(line)][-count:])


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
    if exit_code == _TIMEOUT:
        return "it did not end in time"
    for line in reversed(lines):
        head, colon, rest = line.strip().partition(":")
        if line.startswith(PREFIX):
            return line.strip()
        if head.replace(".", "").isidentifier() and head.endswith(("Error", "Exception", "Interrupt")):
            # TensorFlow's errors are named with their module.
            return f"{head.rpartition('.')[2]}{colon}{rest}"
    return lines[-1].strip() if lines else "it wrote nothing"


def scratch_folder() -> Path:
    """Makes a folder for the records of one verification."""
    return Path(tempfile.mkdtemp(prefix="tfdist-verify-"))
