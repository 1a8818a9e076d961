"""The command line of `tfdist doctor`."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence

from tfdist._suggestions import Parser
from tfdist.cluster import ClusterConfig
from tfdist.doctor.checks import tf_config
from tfdist.doctor.examination import Examination, Result
from tfdist.doctor.facts import Sources
from tfdist.doctor.finding import exit_code
from tfdist.doctor.in_thread import InThread
from tfdist.doctor.printing import as_json, as_text
from tfdist.doctor.shared import is_remote
from tfdist.doctor.signals import noted_signals

# The exit code for a signal is this number and that of the signal.
_SIGNAL_CODE = 128
_POLL_SECONDS = 0.1


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    result = Parser(
        prog="tfdist doctor",
        description="Checks what makes a training fail before it does: ports, names, reachability, clocks, versions, "
        "TF_CONFIG, a shared directory, disks, memory, GPUs and threads. Start it on every task as the training is "
        "started, with the same TF_CONFIG: the tasks find each other, and the chief prints the result for all.",
        epilog="Exit code: 0 if nothing failed, 1 if a check failed, 2 for wrong options. Example: tfdist launch "
        "--workers 2 -- tfdist doctor --directory /mnt/model",
        allow_abbrev=False,
    )
    result.add_argument(
        "--directory", metavar="DIR", help="directory that all tasks should share, such as that of models"
    )
    result.add_argument(
        "--timeout-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="time limit for everything, waiting for other tasks included (default: %(default)g)",
    )
    result.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    return result


def main(argv: Sequence[str] | None = None, *, sources: Sources | None = None) -> int:
    """Runs `tfdist doctor` and returns its exit code.

    Args:
        argv: the arguments after `tfdist doctor`; None takes those of this process.
        sources: the functions that look at this machine; None are those of this package.

    Returns:
        0 if nothing failed, 1 if a check failed, 2 for wrong options.

    Example:
        >>> from tfdist.doctor import main
        >>> main(["--timeout-seconds", "0"])
        2
    """
    try:
        given = parser().parse_args(sys.argv[1:] if argv is None else list(argv))
    except SystemExit as end:
        return int(end.code or 0)
    if not (given.timeout_seconds > 0 and math.isfinite(given.timeout_seconds)):
        return _refuse(f"expected --timeout-seconds above 0, received {given.timeout_seconds:g}.")
    if given.directory is not None and (not given.directory or is_remote(given.directory)):
        return _refuse(
            f"expected the path of a directory for --directory, received {given.directory!r}; only a directory that is "
            "mounted can be checked."
        )
    try:
        config, invalid = ClusterConfig.detect(timeout_seconds=given.timeout_seconds), ""
    except (ValueError, TimeoutError) as error:
        config, invalid = ClusterConfig(), str(error)
    with (
        noted_signals() as received,
        Examination(
            config,
            directory=os.path.abspath(given.directory) if given.directory else None,
            timeout_seconds=given.timeout_seconds,
            say=lambda line: print(f"tfdist doctor: {line}", file=sys.stderr, flush=True),
            sources=sources,
        ) as examination,
    ):

        def show(result: Result) -> None:
            if not received and (result.findings or result.is_report):
                print(as_json(result) + "\n" if given.json else as_text(result), end="")
                # The other tasks end after this task has reported, and a launcher then ends this one.
                sys.stdout.flush()

        # This thread only waits for the result or a signal. At the end of the block all files are removed.
        work = InThread(lambda: _examine(examination, invalid, show), name="tfdist doctor")
        while not work.wait(deadline=time.monotonic() + _POLL_SECONDS):
            if received:
                print("tfdist doctor: interrupted", file=sys.stderr)
                return _SIGNAL_CODE + received[0]
        return work.result(deadline=time.monotonic())


def _examine(examination: Examination, invalid: str, show: Callable[[Result], None]) -> int:
    result = examination.run()
    if invalid:
        result = result.with_finding(tf_config.invalid(result.task, invalid))
    was_reported = False
    try:
        show(result)
    finally:
        # The other tasks wait for this one, even if nobody reads its output.
        was_reported = examination.part()
    return exit_code(result.findings) if was_reported else 1


def _refuse(sentence: str) -> int:
    print(f"tfdist doctor: {sentence}", file=sys.stderr)
    return 2
