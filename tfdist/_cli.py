"""The `tfdist` command: imports the requested sub-command, and passes the arguments on to it."""

from __future__ import annotations

import importlib
import sys

from tfdist._version import __version__

COMMANDS = {
    "launch": "start the tasks of a cluster on this machine and watch over them",
    "verify": "prove that several replicas and workers compute the numbers of one device",
    "train": "train an image classifier on any strategy, configured by flags",
    "bench": "measure input pipelines (input), sums of gradients (allreduce) and optimizer steps (optimizer)",
}


def usage() -> str:
    """Returns the help text."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return (
        f"usage: tfdist [--version] [--help] COMMAND ...\n\ncommands:\n{rows}\n\n"
        "Run `tfdist COMMAND --help` for the options of a command."
    )


def main(argv: list[str] | None = None) -> int:
    """Runs `tfdist COMMAND ...` and returns its exit code."""
    args = sys.argv[1:] if argv is None else argv
    if args[:1] in (["--version"], ["-V"]):
        print(f"tfdist {__version__}")
        return 0
    if not args or args[0] in ("--help", "-h", "help"):
        print(usage())
        return 0 if args else 2
    command, rest = args[0], args[1:]
    if command not in COMMANDS:
        print(
            f"tfdist: expected one of the commands {', '.join(COMMANDS)}, received {command!r}; run `tfdist --help`.",
            file=sys.stderr,
        )
        return 2
    return int(importlib.import_module(f"tfdist.{command}").main(rest) or 0)
