"""The command `tfdist render`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist._suggestions import Parser
from tfdist.launch.args import parse_env
from tfdist.render.job import GRACE_SECONDS, RESTARTS, Job, option_of, seconds_in
from tfdist.render.schedulers import SCHEDULERS, scheduler_named

_EPILOG = """
The file starts the command once for each worker, and starts it again after exit code 75, with which a training with
AutoResume says that it has saved its state. The scheduler's own tool submits the file: the last line on standard error
is the command.

example: tfdist render slurm --nodes 4 --time 2:00:00 --name digits -- python train.py --epochs 3
"""
_EXAMPLE = "slurm --nodes 4 --time 2:00:00"

_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--name": {"help": "name of the job (default: from the program)"},
    "--nodes": {"type": int, "metavar": "N", "help": "number of machines, pods or instances (default: 1)"},
    "--tasks-per-node": {"type": int, "metavar": "N", "help": "number of workers on each of them (default: 1)"},
    "--cpus": {"type": int, "metavar": "N", "help": "CPUs of a worker"},
    "--gpus": {"type": int, "metavar": "N", "help": "GPUs of a worker (default: 0)"},
    "--memory-gib": {"type": int, "metavar": "N", "help": "memory of a worker in GiB"},
    "--time": {"metavar": "TIME", "help": "time limit such as 2:00:00, 1-12:00:00, 90m or 2h"},
    "--env": {"action": "append", "metavar": "KEY=VALUE", "help": "environment variable; may be repeated"},
    "--max-restarts": {
        "type": int,
        "metavar": "N",
        "help": f"start the job again at most N times (default: {RESTARTS})",
    },
    "--restart-failures": {
        "action": "store_true",
        "help": "start the job again after every exit code but 0, and not only after 75",
    },
    "--grace-seconds": {
        "type": int,
        "metavar": "S",
        "help": f"time between SIGTERM and the end (default: {GRACE_SECONDS})",
    },
    "--output": {"type": Path, "metavar": "FILE", "help": "write the file there (default: standard output)"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tfdist render` and returns its exit code.

    Args:
        argv: the arguments after `tfdist render`; None takes the arguments of this process.

    Returns:
        0 if the file was written, 2 for wrong options, 1 if the file cannot be written.

    Example:
        >>> main(["slurm", "--nodes", "0", "--", "python", "train.py"])  # Standard error says what is wrong.
        2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except SystemExit as end:
        return int(end.code or 0)
    except ValueError as error:
        print(f"tfdist render: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tfdist render: {error}", file=sys.stderr)
        return 1


def parser(name: str) -> argparse.ArgumentParser:
    """Returns the parser of the options for a scheduler.

    Args:
        name: name of the scheduler.

    Example:
        >>> parser("slurm").parse_args(["--nodes", "4"]).nodes
        4
    """
    scheduler = SCHEDULERS[name]
    result = Parser(
        prog=f"tfdist render {name}",
        usage=f"tfdist render {name} [options] -- COMMAND [ARGUMENTS ...]",
        description=f"Prints {scheduler.help}.",
        epilog=_EPILOG.replace(_EXAMPLE, _example(name)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    refused = {option_of(field) for field in scheduler.refused}
    for option, settings in _OPTIONS.items():
        # An option that the scheduler cannot honour is understood, so that the message can say why.
        hidden: dict[str, Any] = {"help": argparse.SUPPRESS} if option in refused else {}
        result.add_argument(option, **{**settings, **hidden})
    for option, own in scheduler.options.items():
        result.add_argument(option, **own)
    return result


def _example(name: str) -> str:
    """Returns the beginning of an example of a scheduler, with all options that it needs and none that it refuses."""
    scheduler = SCHEDULERS[name]
    needed = [
        f"{option} {own.get('metavar', 'IMAGE')}" for option, own in scheduler.options.items() if "required" in own
    ]
    time = [] if "seconds" in scheduler.refused else ["--time 2:00:00"]
    return " ".join([name, "--nodes 4", *time, *needed])


def _run(words: list[str]) -> int:
    if words[:1] in ([], ["--help"], ["-h"]):
        rows = "\n".join(f"  {name:<10} {scheduler.help}" for name, scheduler in SCHEDULERS.items())
        print(
            f"usage: tfdist render SCHEDULER [options] -- COMMAND [ARGUMENTS ...]\n\nschedulers:\n{rows}\n{_EPILOG}",
            end="",
        )
        return 0 if words else 2
    name = words[0]
    scheduler = scheduler_named(name)
    options, command = _split(words[1:])
    _check_owner(name, options)
    values = vars(parser(name).parse_args(options))
    output = values.pop("output", None)
    common = {option.removeprefix("--").replace("-", "_") for option in _OPTIONS}
    job = _job(command, {field: value for field, value in values.items() if field in common})
    others = {field: value for field, value in values.items() if field not in common}
    text = scheduler.text(job, **others)
    if output is None:
        print(text, end="")
        file = f"{job.name}{scheduler.suffix}"
        saved = f"save this file as {file}, and "
    else:
        output.write_text(text)
        file, saved = shlex.quote(str(output)), ""
    sys.stdout.flush()
    print(f"tfdist render: {saved}submit it with: {scheduler.submit(file, job, others)}", file=sys.stderr)
    return 0


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Returns the options, and the command after `--`."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _check_owner(name: str, options: list[str]) -> None:
    """Raises ValueError for an option that only other schedulers have."""
    for word in options:
        option = word.partition("=")[0]
        owners = [other for other, scheduler in SCHEDULERS.items() if option in scheduler.options]
        if owners and name not in owners:
            raise ValueError(
                f"expected options of {name}, received {option}, which only {', '.join(owners)} can honour."
            )


def _job(command: list[str], values: dict[str, Any]) -> Job:
    if "time" in values:
        values["seconds"] = seconds_in(values.pop("time"))
    if "env" in values:
        values["env"] = parse_env(values["env"])
    return Job(command=tuple(command), **values)
