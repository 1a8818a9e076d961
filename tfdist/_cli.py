"""The `tfdist` command: hands its arguments to the sub-command's own program, importing nothing else."""

from __future__ import annotations

import importlib
import sys

from tfdist._version import __version__

COMMANDS = {
    "launch": "start a cluster of processes on this machine and watch over it",
    "train": "train a model: a reference program that takes flags",
    "bench": "measure: input pipelines",
}


def usage() -> str:
    """Returns the help text."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return f"usage: tfdist [--version] [--help] COMMAND ...\n\ncommands:\n{rows}\n\n`tfdist COMMAND --help` says more."


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
            f"tfdist: expected a command out of {', '.join(COMMANDS)}, received {command!r}; "
            "`tfdist --help` lists them.",
            file=sys.stderr,
        )
        return 2
    return int(importlib.import_module(f"tfdist.{command}").main(rest) or 0)
