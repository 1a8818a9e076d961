"""Parses the command line of `tfdist launch`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.launch.spec import LaunchSpec

_USAGE = """tfdist launch [options] -- COMMAND [ARGUMENTS ...]
       tfdist launch [options] -m MODULE [ARGUMENTS ...]"""

_DESCRIPTION = """
Starts the tasks of a cluster on this machine, each with its TF_CONFIG, and watches over them. When a task fails, the
others are ended and the failure is reported. When this program ends, even by SIGKILL, all of its processes end.
"""

_EPILOG = """
exit code: 0 if all tasks succeeded, else the code of the task that failed first (128 + number for a signal),
128 + number if this program received a signal, 124 after a timeout, 127 if the command does not exist, 126 if it
cannot be executed, 2 for wrong options.

example: tfdist launch --workers 2 -- python train.py --epochs 3
"""

_OPTIONS: dict[str, dict[str, Any]] = {
    "--workers": {"type": int, "metavar": "N", "help": "number of workers (default: 1)"},
    "--ps": {"type": int, "metavar": "N", "help": "number of parameter servers; adds a chief, which coordinates them"},
    "--chief": {"action": "store_true", "help": "start a chief"},
    "--evaluator": {"action": "store_true", "help": "start an evaluator, outside of the cluster"},
    "--host": {"metavar": "NAME", "help": "name or address of this machine (default: localhost)"},
    "--port-base": {"type": int, "metavar": "P", "help": "use the ports P, P+1, ... (default: free ports)"},
    "--log-dir": {
        "type": Path,
        "metavar": "DIR",
        "help": "directory of the log files (default: tfdist-logs/<time>-<process>)",
    },
    "--grace-seconds": {
        "type": float,
        "metavar": "S",
        "help": "time between the signal that asks a task to end and SIGKILL (default: 5)",
    },
    "--evaluator-grace-seconds": {
        "type": float,
        "metavar": "S",
        "help": "time that the evaluator may go on after all other tasks have ended (default: 60)",
    },
    "--timeout-seconds": {"type": float, "metavar": "S", "help": "end all tasks after S seconds (default: never)"},
    "--threads-per-rank": {
        "type": int,
        "metavar": "N",
        "dest": "threads_per_task",
        "help": "CPU threads of each task that trains or evaluates (default: its share of the CPUs; 0: not set)",
    },
    "--show-info": {
        "action": "store_true",
        "help": "show TensorFlow's own information lines (default: only in the log files)",
    },
    "--env": {"action": "append", "metavar": "KEY=VALUE", "help": "environment variable of all tasks; may be repeated"},
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options, which are written before the command.

    Example:
        >>> parser().parse_args(["--workers", "2"]).workers
        2
    """
    result = argparse.ArgumentParser(
        prog="tfdist launch",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for name, settings in _OPTIONS.items():
        result.add_argument(name, **settings)
    return result


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments into options and command.

    The command begins after `--`, at `-m`, or at the first word that is neither an option nor the value of an option.

    Example:
        >>> split_command(["--workers", "2", "-m", "pkg.train", "--epochs", "3"])
        (['--workers', '2'], ['-m', 'pkg.train', '--epochs', '3'])
    """
    number = 0
    while number < len(argv):
        word = argv[number]
        if word == "--":
            return list(argv[:number]), list(argv[number + 1 :])
        if word == "-m" or not word.startswith("-"):
            break
        number += 2 if word in _OPTIONS and _OPTIONS[word].get("action") != "store_true" else 1
    return list(argv[:number]), list(argv[number:])


def parse(argv: Sequence[str]) -> LaunchSpec:
    """Returns the LaunchSpec that a command line describes.

    Args:
        argv: the arguments after `tfdist launch`.

    Raises:
        ValueError: if LaunchSpec refuses the values.
        SystemExit: after `--help` (code 0), or if an option is unknown or malformed (code 2).

    Example:
        >>> parse(["--workers", "2", "--", "python", "train.py"]).command
        ('python', 'train.py')
    """
    options, command = split_command(argv)
    values = vars(parser().parse_args(options))
    if "env" in values:
        values["env"] = parse_env(values["env"])
    return LaunchSpec(command=tuple(command), **values)


def parse_env(pairs: Sequence[str]) -> Mapping[str, str]:
    """Returns the environment variables in texts such as KEY=VALUE.

    Raises:
        ValueError: if a text does not have that form.

    Example:
        >>> parse_env(["A=1", "B=x=y"])
        {'A': '1', 'B': 'x=y'}
    """
    variables = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ValueError(f"expected --env KEY=VALUE, received {pair!r}; write it as in --env TF_DEBUG=1.")
        variables[key] = value
    return variables
