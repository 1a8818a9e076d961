"""The command line of `tfdist test`."""

from __future__ import annotations

import argparse
import dataclasses
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tfdist._suggestions import Parser
from tfdist._tensorflow import MISSING, is_installed
from tfdist.cluster import ClusterConfig
from tfdist.cluster.launched import launched

_INTERRUPTED = 130


class _Ended(BaseException):
    """A signal has asked this process to end."""


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    result = Parser(
        prog="tfdist test",
        description="Tests the installed tfdist where it will train: all-reduce, small trainings in float64 that are "
        "compared with one device, a saved model, and a training of which one worker is killed. Alone, it starts two "
        "workers on this machine. In the tasks of `tfdist launch` or of a scheduler, it runs in these tasks, and the "
        "chief prints the result.",
        epilog="Exit code: 0 if all checks passed, 1 if one failed, 2 for wrong options. Example: srun tfdist test",
        allow_abbrev=False,
    )
    result.add_argument(
        "--workers", type=int, metavar="N", help="number of workers to start on this machine (default: 2)"
    )
    result.add_argument(
        "--timeout-seconds",
        type=float,
        default=180.0,
        metavar="S",
        help="time limit for everything, waiting for other tasks included (default: %(default)g)",
    )
    result.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    # The folder in which the tasks that this command starts write their reports.
    result.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tfdist test` and returns its exit code.

    Args:
        argv: the arguments after `tfdist test`; None takes those of this process.

    Returns:
        0 if all checks passed, 1 if one failed, 2 for wrong options.

    Example:
        >>> from tfdist.test import main
        >>> main(["--timeout-seconds", "0"])  # after a line on stderr that says why
        2
    """
    try:
        given = parser().parse_args(sys.argv[1:] if argv is None else list(argv))
    except SystemExit as end:
        return int(end.code or 0)
    try:
        config = _checked(given)
    except ValueError as error:
        print(f"tfdist test: {error}", file=sys.stderr)
        return 2
    if config.is_evaluator:
        print("tfdist test: the evaluator takes no part in a training, and is not tested", file=sys.stderr)
        return 0
    try:
        return _run_in_task(config, given) if config.is_distributed else _run_alone(given)
    except KeyboardInterrupt:
        print("tfdist test: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _checked(given: Any) -> ClusterConfig:
    """Returns the cluster of this process.

    Raises:
        ValueError: if an option is wrong, if the cluster has parameter servers, or if TensorFlow is not installed.
    """
    if not (given.timeout_seconds > 0 and math.isfinite(given.timeout_seconds)):
        raise ValueError(f"expected --timeout-seconds above 0, received {given.timeout_seconds:g}.")
    if given.workers is not None and given.workers < 2:
        raise ValueError(f"expected --workers to be at least 2, received {given.workers}.")
    if not is_installed():
        raise ValueError(MISSING)
    config = ClusterConfig.detect()
    if config.has_parameter_servers:
        raise ValueError(
            "expected a cluster of workers, received one with parameter servers; start `tfdist test` without them."
        )
    if config.is_distributed and given.workers is not None:
        raise ValueError(
            f"expected no --workers in a task of a cluster, which has {config.num_workers}, received {given.workers}; "
            "leave it out."
        )
    return config


def _run_alone(given: Any) -> int:
    from tfdist.test.alone import run_alone
    from tfdist.test.report import as_text

    workers = given.workers or 2
    _say(f"starts {workers} workers on this machine, which takes about a minute")
    first, *others = run_alone(workers=workers, timeout_seconds=given.timeout_seconds)
    has_passed = first.has_passed and all(other.has_passed for other in others) and len(others) == workers - 1
    print(first.to_json() + "\n" if given.json else as_text(first, others), end="")
    return 0 if has_passed else 1


def _run_in_task(config: ClusterConfig, given: Any) -> int:
    from tfdist.test.report import Report, as_text, verdict
    from tfdist.test.task import Task

    by = "on this machine" if given.report else f"of {'tfdist launch' if launched() else config.source}"
    where = f"{config.num_workers} workers {by}"
    say = _say if config.is_chief else lambda line: None
    task = Task(config, where=where, timeout_seconds=given.timeout_seconds, say=say)
    report: Report | None = None
    former = signal.signal(signal.SIGTERM, _end)
    try:
        report = task.run()
    except (_Ended, KeyboardInterrupt) as end:
        name = "SIGTERM" if isinstance(end, _Ended) else "Ctrl-C"
        reason = f"{config.task_name} was ended by {name} during this check"
        report = dataclasses.replace(task.report(task.running, reason), was_ended=True)
    finally:
        signal.signal(signal.SIGTERM, former)
    if given.report:
        scratch = given.report / f".{config.task_type}-{config.task_index}"
        scratch.write_text(report.to_json())
        scratch.rename(given.report / f"{config.task_type}-{config.task_index}.json")
    elif config.is_chief:
        print(report.to_json() + "\n" if given.json else as_text(report), end="")
    elif not report.has_passed:
        print(f"{config.task_name}: {verdict(report)}", file=sys.stderr)
    sys.stdout.flush()
    return 0 if report.has_passed else 1


def _end(number: int, frame: object) -> NoReturn:
    raise _Ended


def _say(line: str) -> None:
    print(f"tfdist test: {line}", file=sys.stderr, flush=True)
