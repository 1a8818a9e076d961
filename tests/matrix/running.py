"""Runs a program in the environment of a pair, with a deadline for it and all processes that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.matrix.pairs import Pair
from tests.processes import ROOT

_INHERITED = ("TF_CONFIG", "TF_USE_LEGACY_KERAS", "KERAS_BACKEND", "PYTHONPATH", "PYTEST_ADDOPTS")


def run_in(
    pair: Pair,
    python: Path,
    *arguments: str,
    log: Path,
    deadline_seconds: float,
    environment: Mapping[str, str] | None = None,
) -> int | None:
    """Runs the Python of a pair with these arguments; returns its exit code, or None if it was killed at the deadline.

    Args:
        pair: the pair.
        python: its Python.
        arguments: of the command line.
        log: the file for its output.
        deadline_seconds: how long it may take.
        environment: more environment variables.
    """
    variables = {name: value for name, value in os.environ.items() if name not in _INHERITED}
    variables |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}
    if pair.is_tf_keras:
        variables["TF_USE_LEGACY_KERAS"] = "1"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python), *arguments],
            cwd=ROOT,
            env={**variables, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
