"""`tfdist completion`: prints the script with which a shell completes the commands, options and values of tfdist.

The script is static: it holds all words, and the shell starts no Python to complete a line.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import shtab
from absl import flags

from tfdist._cli import COMMANDS
from tfdist._suggestions import Parser
from tfdist.bench import BENCHMARKS, allreduce, input, optimizer
from tfdist.doctor import cli as doctor
from tfdist.env import cli as env
from tfdist.flags import define_flags
from tfdist.launch import args as launch
from tfdist.render import SCHEDULERS
from tfdist.render import cli as render
from tfdist.test import cli as test
from tfdist.verify import cli as verify

SHELLS = ("bash", "zsh", "fish")

# Bash takes `=` for a word of its own, which shtab does not expect: `--strategy=mi` is completed as `--strategy mi`.
_WITHOUT_EQUALS = r"""
_tfdist_completion() {
  local -a words=()
  local index at=0 equals=0
  for index in "${!COMP_WORDS[@]}"; do
    if [[ "${COMP_WORDS[index]}" == "=" && $index -lt $COMP_CWORD ]]; then
      ((equals += 1))
    elif [[ "${COMP_WORDS[index]}" == "=" ]]; then
      words+=("")
    else
      words+=("${COMP_WORDS[index]}")
    fi
  done
  ((at = COMP_CWORD - equals))
  COMP_WORDS=("${words[@]}")
  COMP_CWORD=$at
  _shtab_tfdist
}

complete -o bashdefault -F _tfdist_completion tfdist
"""


def main(argv: Sequence[str]) -> int:
    """Runs `tfdist completion SHELL` and returns its exit code.

    Args:
        argv: the arguments after `tfdist completion`.

    Example:
        >>> from tfdist.completion import main
        >>> main(["--help"]).__class__
        usage: tfdist completion [-h] {bash,zsh,fish}
        ...
        <class 'int'>
    """
    try:
        shell = _own_parser().parse_args(list(argv)).shell
    except SystemExit as end:
        return int(end.code or 0)
    print(script(shell), end="")
    return 0


def script(shell: str) -> str:
    """Returns the script for a shell.

    Args:
        shell: "bash", "zsh" or "fish".

    Example:
        >>> script("zsh").splitlines()[0]
        '#compdef tfdist'
    """
    text = shtab.complete(parser(), shell=shell)
    return f"{text.rstrip()}\n{_WITHOUT_EQUALS if shell == 'bash' else ''}"


def parser() -> argparse.ArgumentParser:
    """Returns one parser for the whole command line, with the options of all commands.

    Example:
        >>> parser().parse_args(["train", "--epochs", "3"]).epochs
        '3'
    """
    result = argparse.ArgumentParser(prog="tfdist", description="Distributed training for TensorFlow 2 and Keras.")
    result.add_argument("--version", action="store_true", help="print the version")
    commands = result.add_subparsers(dest="command")
    parsers = {
        "launch": launch.parser(),
        "doctor": doctor.parser(),
        "test": test.parser(),
        "env": env.parser(),
        "verify": verify.parser(),
        "train": _train_parser(),
        "completion": _own_parser(),
    }
    for name, options in parsers.items():
        added = commands.add_parser(name, help=COMMANDS[name], parents=[options], add_help=False)
        if name in ("launch", "verify"):
            program = added.add_argument("program", nargs="*", help="program and its arguments")
            program.complete = shtab.FILE  # type: ignore[attr-defined]
    schedulers = commands.add_parser("render", help=COMMANDS["render"]).add_subparsers(dest="scheduler")
    for name, scheduler in SCHEDULERS.items():
        added = schedulers.add_parser(name, help=scheduler.help, parents=[render.parser(name)], add_help=False)
        program = added.add_argument("program", nargs="*", help="program and its arguments")
        program.complete = shtab.FILE  # type: ignore[attr-defined]
    benchmarks = commands.add_parser("bench", help=COMMANDS["bench"]).add_subparsers(dest="benchmark")
    for name, module in {"allreduce": allreduce, "input": input, "optimizer": optimizer}.items():
        benchmarks.add_parser(name, help=BENCHMARKS[name], parents=[module.parser()], add_help=False)
    return result


def _own_parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="tfdist completion",
        description="Prints a script that completes tfdist commands. In bash: "
        'eval "$(tfdist completion bash)". In zsh: tfdist completion zsh > "${fpath[1]}/_tfdist". In fish: '
        "tfdist completion fish | source.",
    )
    result.add_argument("shell", choices=SHELLS, help="name of the shell")
    return result


def _train_parser() -> argparse.ArgumentParser:
    """Returns a parser with the flags of `tfdist train`, which absl parses."""
    result = Parser(prog="tfdist train")
    values = flags.FlagValues()
    define_flags(flag_values=values)
    for name in sorted(values):
        flag = values[name]
        text = (flag.help or "").replace("%", "%%")
        if flag.boolean:
            result.add_argument(f"--{name}", action="store_true", help=text)
            result.add_argument(f"--no{name}", action="store_true", help=f"turns --{name} off")
        else:
            result.add_argument(f"--{name}", choices=getattr(flag.parser, "enum_values", None), help=text)
    flagfile = result.add_argument("--flagfile", help="file with further flags")
    flagfile.complete = shtab.FILE  # type: ignore[attr-defined]
    return result
