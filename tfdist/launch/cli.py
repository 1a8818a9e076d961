"""The command `tfdist launch`."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from tfdist._cli import discard_output
from tfdist.launch.args import parse, parse_scale
from tfdist.launch.command import CommandError
from tfdist.launch.report import count
from tfdist.launch.scale import request_workers
from tfdist.launch.supervisor import launch


def main(argv: list[str] | None = None) -> int:
    """Runs `tfdist launch` and returns its exit code.

    Args:
        argv: the arguments after `tfdist launch`; None takes the arguments of this process.

    Returns:
        0 if all tasks succeeded, 2 for wrong options; `tfdist launch --help` lists the other codes.

    Example:
        >>> from tfdist.launch import main
        >>> main(["--workers", "0", "train.py"])  # Standard error says that there is no task.
        2
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        request = parse_scale(arguments)
        if request is not None:
            return _scale(*request)
        spec = parse(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except ValueError as error:
        return _refuse(error, 2)
    try:
        code = launch(spec).exit_code
    except CommandError as error:
        return _refuse(error, error.exit_code)
    except ValueError as error:
        return _refuse(error, 2)
    except KeyboardInterrupt:
        return 130  # No task runs yet. While tasks run, the launcher passes the signal on to them.
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            sentence = (
                f"expected enough open files for {len(spec.tasks)} tasks, received {error.strerror!r}; start fewer "
                "tasks, or raise the limit with `ulimit -n`."
            )
            return _refuse(OSError(sentence), 1)
        return _refuse(error, 1)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The tasks went on without a reader, as in `| head`, so that the exit code is that of the tasks.
        discard_output(sys.stdout)
    return code


def _scale(workers: int, log_dir: Path) -> int:
    try:
        request_workers(log_dir, workers)
    except OSError as error:
        return _refuse(error, 1)
    print(f"tfdist launch: the run goes on with {count(workers, 'worker')}", file=sys.stderr)
    return 0


def _refuse(error: Exception, code: int) -> int:
    print(f"tfdist launch: {error}", file=sys.stderr)
    return code
