"""The command line of `tfdist launch`, as a value."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.launch.spec import LaunchSpec

_USAGE = """tfdist launch [options] -- COMMAND [ARGUMENTS ...]
       tfdist launch [options] -m MODULE [ARGUMENTS ...]"""

_DESCRIPTION = """
Starts a cluster of processes on this machine, each with its TF_CONFIG, and watches over them: when one fails, the
others are ended and the failure is reported; when this program ends, even by SIGKILL, no process is left behind.
"""

_EPILOG = """
exit code: 0 if all ranks succeeded, else that of the rank that failed first (128 + number for a signal),
128 + number if this program got a signal, 124 if the timeout passed, 127 if there is no such command,
2 for wrong options.

example: tfdist launch --workers 2 -- python train.py --epochs 3
"""

_OPTIONS: dict[str, dict[str, Any]] = {
    "--workers": {"type": int, "metavar": "N", "help": "number of workers (default: 1)"},
    "--ps": {"type": int, "metavar": "N", "help": "number of parameter servers; adds a chief, which coordinates"},
    "--chief": {"action": "store_true", "help": "start a chief"},
    "--evaluator": {"action": "store_true", "help": "start an evaluator beside the cluster"},
    "--host": {"metavar": "NAME", "help": "name or address of this machine (default: localhost)"},
    "--port-base": {"type": int, "metavar": "P", "help": "use the ports P, P+1, ... (default: free ports)"},
    "--log-dir": {"type": Path, "metavar": "DIR", "help": "log files (default: tfdist-logs/<time>-<process>)"},
    "--grace-seconds": {
        "type": float,
        "metavar": "S",
        "help": "time to end after being told to, before being killed (default: 5)",
    },
    "--evaluator-grace-seconds": {
        "type": float,
        "metavar": "S",
        "help": "time that the evaluator may go on after all others have ended (default: 60)",
    },
    "--timeout-seconds": {"type": float, "metavar": "S", "help": "end the whole job after S seconds (default: never)"},
    "--threads-per-rank": {
        "type": int,
        "metavar": "N",
        "help": "CPU threads of each worker (default: its share of the CPUs; 0: don't set any)",
    },
    "--show-info": {
        "action": "store_true",
        "help": "show TensorFlow's own information lines too (default: only in the log files)",
    },
    "--env": {"action": "append", "metavar": "KEY=VALUE", "help": "environment variable for all ranks; repeatable"},
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options before the command."""
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
    """Splits the arguments into options and command, which begins after `--`, at `-m`, or at the first plain word.

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
    """Returns the job that a command line asks for.

    Args:
        argv: The arguments after `tfdist launch`.

    Raises:
        ValueError: If they make no job.
        SystemExit: After `--help` (0), or if an option is unknown or malformed (2).
    """
    options, command = split_command(argv)
    values = vars(parser().parse_args(options))
    if "env" in values:
        values["env"] = parse_env(values["env"])
    return LaunchSpec(command=tuple(command), **values)


def parse_env(pairs: Sequence[str]) -> Mapping[str, str]:
    """Returns the variables given by KEY=VALUE.

    Raises:
        ValueError: If one of them is not of that form.

    Example:
        >>> parse_env(["A=1", "B=x=y"])
        {'A': '1', 'B': 'x=y'}
    """
    variables = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ValueError(f"expected --env KEY=VALUE, received {pair!r}; write for example --env TF_DEBUG=1.")
        variables[key] = value
    return variables
