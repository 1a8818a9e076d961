"""The `tfdist` command: imports the requested sub-command, and passes the arguments on to it."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import sys
from collections.abc import Callable
from typing import TextIO

from tfdist._suggestions import did_you_mean
from tfdist._tensorflow import MISSING, is_installed
from tfdist._version import __version__

COMMANDS = {
    "launch": "start the tasks of a cluster on this machine and watch over them",
    "render": "print the file that starts a command on Slurm, Kubernetes, SageMaker, Vertex AI or Ray",
    "doctor": "check on every task what makes clusters fail: ports, names, versions, clocks, the shared directory",
    "test": "test this installation with two workers here, or in the tasks of a launcher or scheduler",
    "env": "print what a report of a defect needs: versions, devices, cluster, mends, variables",
    "verify": "prove that several replicas and workers compute the numbers of one device",
    "train": "train an image classifier on any strategy, configured by flags",
    "bench": "measure input pipelines (input), sums of gradients (allreduce) and optimizer steps (optimizer)",
    "completion": "print the script that completes these commands in bash, zsh or fish",
}

EXAMPLES = {
    "launch": "tfdist launch --workers 2 -- python train.py",
    "render": "tfdist render slurm --nodes 4 --time 2:00:00 -- python train.py",
    "doctor": "tfdist launch --workers 2 -- tfdist doctor --directory /mnt/model",
    "test": "srun tfdist test",
    "env": "tfdist env --json",
    "verify": "tfdist verify -- python train.py",
    "train": "tfdist train --strategy=mirrored --devices=2 --epochs=3",
    "bench": "tfdist bench optimizer --model resnet50",
    "completion": 'eval "$(tfdist completion bash)"',
}
"""An example of each command, which the help text prints."""

_SIGPIPE_CODE = 141
_FULL_CODE = 1


def usage() -> str:
    """Returns the help text."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(
        f"  {name:<{width}}  {text}\n  {'':<{width}}    {EXAMPLES[name]}" for name, text in COMMANDS.items()
    )
    return (
        f"usage: tfdist [--version] [--help] COMMAND ...\n\ncommands:\n{rows}\n\n"
        "Run `tfdist COMMAND --help` for the options of a command."
    )


def main(argv: list[str] | None = None) -> int:
    """Runs `tfdist COMMAND ...` and returns its exit code."""
    return exit_code_of(lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(args: list[str]) -> int:
    if args[:1] in (["--version"], ["-V"]):
        print(f"tfdist {__version__}")
        return 0
    if not args or args[0] in ("--help", "-h", "help"):
        print(usage())
        return 0 if args else 2
    command, rest = args[0], args[1:]
    if command not in COMMANDS:
        print(
            f"tfdist: expected one of the commands {', '.join(COMMANDS)}, received {command!r}; "
            f"{did_you_mean(command, COMMANDS)}run `tfdist --help`.",
            file=sys.stderr,
        )
        return 2
    return int(importlib.import_module(f"tfdist.{command}").main(rest) or 0)


def exit_code_of(command: Callable[[], int | None]) -> int:
    """Runs a command and returns its exit code; ends quietly if the reader of its output has ended, as in `| head`.

    Args:
        command: runs the command and returns its exit code; None is 0.

    Returns:
        The exit code; 2 if the command needs TensorFlow, which is not installed; 141 if the reader has ended, which is
        the code of a Unix tool that SIGPIPE has ended; 1 if the output cannot be written, such as on a full disk.

    Example:
        >>> exit_code_of(lambda: print("done"))
        done
        0
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # The caller has closed it, as `>&-` does.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    try:
        try:
            code = int(command() or 0)
        except SystemExit:
            _flush()
            raise
        _flush()
        return code
    except ModuleNotFoundError as error:
        if error.name != "tensorflow" or is_installed():
            raise
        print(f"tfdist: {MISSING}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        broken = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _has_no_reader(stream)]
        if not broken:
            raise
        for stream in broken:
            discard_output(stream)
        return _SIGPIPE_CODE
    except OSError as error:
        # Any other file may be the one that cannot be written.
        if not _is_full(sys.stdout):
            raise
        discard_output(sys.stdout)
        print(
            f"tfdist: expected an output that can be written, received {error.strerror}; make room, or use another.",
            file=sys.stderr,
        )
        return _FULL_CODE


def _flush() -> None:
    # What stays in the buffer is written when Python ends, where a broken pipe makes a message on stderr.
    if sys.stdout is not None:
        sys.stdout.flush()


def _has_no_reader(stream: TextIO) -> bool:
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        events = dict(poll.poll(0)).get(stream.fileno(), 0)
    except (OSError, ValueError):
        return False
    return bool(events & (select.POLLERR | select.POLLHUP))


def _is_full(stream: TextIO) -> bool:
    try:
        stream.write("\n")
        stream.flush()
    except OSError:
        return True
    return False


def discard_output(stream: TextIO) -> None:
    """Writes all further output of a stream to nowhere; for a stream whose reader has ended."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
