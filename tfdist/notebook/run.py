"""run: calls a function of a notebook on several workers, each of which is a new process on this machine."""

from __future__ import annotations

import io
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from tfdist._sending import to_bytes
from tfdist.launch import LaunchResult, LaunchSpec, launch
from tfdist.notebook.arguments import call_arguments, check_module, check_types, named, variables
from tfdist.notebook.cell import Cell
from tfdist.notebook.sendable import what_cannot_be_sent
from tfdist.notebook.values import CALL, FAILED, RETURNED, TaskTraceback, guilty

_INTERRUPTED, _TIMEOUT = (130, 143), 124


def run(
    function: Callable[..., Any] | str,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    workers: int = 2,
    ps: int = 0,
    max_restarts: int = 0,
    timeout_seconds: float | None = None,
    threads_per_task: int | None = None,
    env: Mapping[str, str] | None = None,
    log_dir: str | None = None,
    verbose: bool = True,
) -> Any:
    """Calls a function on each task of a cluster on this machine, and returns what the chief returned.

    Each task is a new Python process, so that it does not matter what the notebook has done with TensorFlow or a GPU
    before. The function imports what it needs, and calls `tfdist.create_strategy()`, which finds the cluster. The cell
    shows the lines of all tasks, and the progress bar of the chief. An interrupt of the cell ends all tasks.

    Args:
        function: a function, which may be defined in a cell; or the name of a module, which runs as `python -m`.
        args: the arguments of the function; the command line of a module, as texts.
        kwargs: the keyword arguments of the function.
        workers: number of workers.
        ps: number of parameter servers. The coordinator calls the function; the others serve it.
        max_restarts: how often all tasks start again after one has failed. A training with
            `tfdist.checkpoint.AutoResume` then goes on from its last snapshot; other functions begin again.
        timeout_seconds: time limit; None is no limit.
        threads_per_task: number of CPU threads of each task; None divides the CPUs among the tasks.
        env: environment variables to add, such as {"TF_USE_LEGACY_KERAS": "1"}.
        log_dir: directory of the log files; None makes a new one in `tfdist-logs`.
        verbose: whether the cell shows the lines of the tasks; the log files always have them.

    Returns:
        What the function returned on the chief, which may be numbers, arrays, texts, a History, or lists and dicts of
        these. Tensors and variables are returned as arrays. A module returns None.

    Raises:
        ValueError: if an argument has no meaning, or the function, its arguments or what it returns cannot be sent to
            another process.
        TimeoutError: if the tasks have not ended in time.
        KeyboardInterrupt: if the cell is interrupted, after all tasks have ended.
        RuntimeError: if a task ends without an exception, such as by a signal.
        Exception: the exception of the task that failed first, whose traceback is its cause.

    Example:
        >>> import tfdist
        >>> def train(learning_rate):
        ...     return {"learning_rate": learning_rate}
        >>> tfdist.notebook.run(train, args=[0.1], workers=1, verbose=False)
        {'learning_rate': 0.1}
    """
    if not callable(function) and not isinstance(function, str):
        raise ValueError(
            f"expected a function, or the name of a module as text, received {type(function).__name__}; define a "
            "function that makes the strategy and the model."
        )
    if hasattr(function, "fit"):
        raise ValueError("expected a function, received a Keras model; make the model in a function.")
    is_module = isinstance(function, str)
    check_types(
        workers=workers,
        ps=ps,
        max_restarts=max_restarts,
        timeout_seconds=timeout_seconds,
        threads_per_task=threads_per_task,
        log_dir=log_dir,
        verbose=verbose,
    )
    args, kwargs, env = call_arguments(args), named("kwargs", kwargs), variables(env)
    if is_module:
        check_module(str(function))
        if kwargs:
            raise ValueError(f"expected no kwargs with a module, received {sorted(kwargs)}; write them as args.")
    with tempfile.TemporaryDirectory(prefix="tfdist-notebook-") as name:
        folder = Path(name)
        if is_module:
            command = ("-m", str(function), *map(str, args))
        else:
            (folder / CALL).write_bytes(_sent(function, args, kwargs))
            command = ("-m", "tfdist.notebook.task", name)
        spec = LaunchSpec(
            command=command,
            workers=workers,
            ps=ps,
            max_restarts=max_restarts,
            timeout_seconds=timeout_seconds,
            threads_per_task=threads_per_task,
            log_dir=Path(log_dir) if log_dir is not None else None,
            env=env,
        )
        ended, lines = _launch(spec, sys.stdout if verbose else io.StringIO())
        _raise_if_failed(ended, folder, lines, timeout_seconds=timeout_seconds)
        returned = folder / RETURNED
        return pickle.loads(returned.read_bytes()) if returned.exists() else None


def _sent(function: Any, args: tuple, kwargs: dict) -> bytes:
    try:
        return to_bytes((function, args, kwargs))
    except Exception as error:
        name = what_cannot_be_sent(function, args, kwargs)
        raise ValueError(
            f"expected a function that can be sent to new processes, received one with {name}, which cannot be sent "
            f"({type(error).__name__}: {error}); make models, datasets and strategies in the function."
        ) from None


def _launch(spec: LaunchSpec, stream: TextIO) -> tuple[LaunchResult, list[str]]:
    cell = Cell(stream, chief="chief 0" if spec.ps else "worker 0")
    try:
        return launch(spec, out=cell, err=cast(TextIO, cell)), cell.last_lines
    finally:
        cell.end()


def _raise_if_failed(ended: LaunchResult, folder: Path, lines: Sequence[str], *, timeout_seconds: float | None) -> None:
    if ended.exit_code in _INTERRUPTED:
        raise KeyboardInterrupt
    if not ended.exit_code:
        return
    if ended.exit_code == _TIMEOUT:
        raise TimeoutError(
            f"expected the tasks to end within {timeout_seconds:g} s, received no end; the logs are in {ended.log_dir}."
        )
    failure = guilty([pickle.loads(path.read_bytes()) for path in folder.glob(FAILED)])
    if failure is not None:
        cause = TaskTraceback(failure.task, failure.text)
        raise failure.error or RuntimeError(f"{failure.task} raised {failure.summary}") from cause
    first = ended.first_failure
    how = f"{first.task.name}: {first.how}" if first is not None else f"exit code {ended.exit_code}"
    said = "\n".join(lines)
    raise RuntimeError(
        f"expected all tasks to end with exit code 0, received {how}; the logs are in {ended.log_dir}. The last lines "
        f"are:\n{said}"
    )
