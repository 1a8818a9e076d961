"""Parses the command line of `tfdist launch`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist._suggestions import Parser
from tfdist.launch.scale import Elastic
from tfdist.launch.spec import SHOWN, LaunchSpec

_USAGE = """tfdist launch [options] -- COMMAND [ARGUMENTS ...]
       tfdist launch [options] -m MODULE [ARGUMENTS ...]
       tfdist launch --scale-to N --log-dir DIR"""

_DESCRIPTION = """
Starts the tasks of a cluster on this machine, each with its TF_CONFIG, and watches over them. When a task fails, the
others are ended and the failure is reported. When this program ends, even by SIGKILL, all of its processes end.
"""

_EPILOG = """
exit code: 0 if all tasks succeeded, else the code of the task that failed first (128 + number for a signal),
128 + number if this program received a signal, 124 after a timeout, 127 if the command does not exist, 126 if it
cannot be executed, 2 for wrong options. A task that ends with 75 asks for a restart; this program ends with 75 if a
task asked for a restart and was not restarted, also after a signal.

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
        "help": "time between the signal that asks a task to end and SIGKILL (default: 30 where tasks may save their "
        "state, which is after a signal to this program other than SIGINT, after exit code 75 of another task, and "
        "after --scale-to; else 5)",
    },
    "--evaluator-grace-seconds": {
        "type": float,
        "metavar": "S",
        "help": "time that the evaluator may go on after all other tasks have ended (default: 60)",
    },
    "--timeout-seconds": {"type": float, "metavar": "S", "help": "end all tasks after S seconds (default: never)"},
    "--max-restarts": {
        "type": int,
        "metavar": "N",
        "help": "start all tasks again if one fails, at most N times (default: 0); a task that fails three times in a "
        "row at the same step, or before its first step, is not restarted again",
    },
    "--max-preemptions": {
        "type": int,
        "metavar": "N",
        "help": "start all tasks again if one ends with exit code 75, at most N times, which do not count as restarts "
        "after failures (default: 100 with --max-restarts or --elastic, else 0)",
    },
    "--restart-budget-seconds": {
        "type": float,
        "metavar": "S",
        "help": "count only the restarts of the last S seconds against these two limits (default: all of the run)",
    },
    "--restart-grace-seconds": {
        "type": float,
        "metavar": "S",
        "help": "time between the signal that asks the other tasks to end, after a failure and before a restart, and "
        "SIGKILL (default: 1, or --grace-seconds if that is less)",
    },
    "--elastic": {
        "metavar": "MIN:MAX",
        "help": "go on with one worker less, but at least MIN, when a worker fails and is not restarted any more, and "
        "with as many as --scale-to asks for, at most MAX",
    },
    "--scale-to": {
        "type": int,
        "metavar": "N",
        "help": "tell the run with --elastic whose logs are in --log-dir to go on with N workers; starts nothing",
    },
    "--standby": {
        "action": "store_true",
        "help": "keep a process for each task ready with TensorFlow imported, so that restarts are quicker; only for "
        "commands that are `-m MODULE` or a .py file",
    },
    "--threads-per-rank": {
        "type": int,
        "metavar": "N",
        "dest": "threads_per_task",
        "help": "CPU threads of each task that trains or evaluates (default: its share of the CPUs; 0: not set)",
    },
    "--show": {
        "choices": SHOWN,
        "help": "program: leave out log lines of TensorFlow and other dependencies, which the log files keep, and show "
        "a log line once that several tasks write alike; all: show everything (default: program)",
    },
    "--adopt": {
        "action": "store_true",
        "help": "prepare the strategies that the program makes with the constructors of tf.distribute, as "
        "tfdist.create_strategy does; the program stays as it is",
    },
    "--env": {"action": "append", "metavar": "KEY=VALUE", "help": "environment variable of all tasks; may be repeated"},
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options, which are written before the command.

    Example:
        >>> parser().parse_args(["--workers", "2"]).workers
        2
    """
    result = Parser(
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
    if "elastic" in values:
        values["elastic"] = Elastic.parse(values["elastic"])
    return LaunchSpec(command=tuple(command), **values)


def parse_scale(argv: Sequence[str]) -> tuple[int, Path] | None:
    """Returns the number of workers and the directory of a request to a running launcher; None for other commands.

    Args:
        argv: the arguments after `tfdist launch`.

    Raises:
        ValueError: if anything but --scale-to and --log-dir is given.
        SystemExit: if an option is unknown or malformed (code 2).

    Example:
        >>> parse_scale(["--scale-to", "1", "--log-dir", "logs"])
        (1, PosixPath('logs'))
    """
    options, command = split_command(argv)
    if not any(word.partition("=")[0] == "--scale-to" for word in options):
        return None
    values = vars(parser().parse_args(options))
    if command or set(values) != {"scale_to", "log_dir"}:
        raise ValueError(
            f"expected --scale-to N with --log-dir DIR and nothing else, received {shlex.join(argv)!r}; it is a "
            "message to a run that goes on."
        )
    return values["scale_to"], values["log_dir"]


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
