"""Follows a page of the documents literally: saves its programs, runs its commands, and compares their output.

    python -m tests.followed docs/tutorial.md
    python -m tests.followed --skip-until "python plain.py" docs/tutorial.md

A `python` block after a line that ends with "Save this as `name.py`:" is written to that file. A `sh` block runs in
bash, in the environment that the blocks before have made. Two `sh` blocks that begin "In the first terminal:" and "In
the second terminal:" run at the same time. A `text` block after a command has lines of its output, in this order; `...`
stands for anything. Other blocks are not allowed.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.processes import ROOT, finish, start

DEADLINE_SECONDS = 600
# Where the documents say that the sources are. The test uses this checkout instead.
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_SAVED = re.compile(r"Save this as `([\w.]+)`:\s*$")
_TERMINAL = re.compile(r"In the (?:first|second) terminal:\s*$")


@dataclasses.dataclass(frozen=True)
class Save:
    """A program that the reader saves."""

    name: str
    text: str


@dataclasses.dataclass(frozen=True)
class Commands:
    """Commands of one terminal, or of several at the same time, and lines of their output."""

    terminals: tuple[str, ...]
    output: str = ""


def actions(page: str) -> list[Save | Commands]:
    """Returns what a reader of a page does, in order."""
    done: list[Save | Commands] = []
    end, shared = 0, False
    for block in _BLOCK.finditer(page):
        before, (language, text) = page[end : block.start()], block.groups()
        end = block.end()
        saved, terminal = _SAVED.search(before), bool(_TERMINAL.search(before))
        last = done[-1] if done else None
        if language == "python" and saved:
            done.append(Save(saved[1], text))
        elif language == "sh" and terminal and shared and isinstance(last, Commands):
            done[-1] = Commands((*last.terminals, text))
        elif language == "sh":
            done.append(Commands((text,)))
        elif language == "text" and isinstance(last, Commands) and not last.output:
            done[-1] = dataclasses.replace(last, output=text)
        else:
            raise ValueError(f"expected a block that a reader can follow, received {language}:\n{text}")
        shared = terminal
    return done


def missing_line(expected: str, shown: str) -> str | None:
    """Returns the first expected line that is not in the output after the lines before it; None if all are there."""
    rest = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    for line in expected.splitlines():
        found = re.search(".*".join(re.escape(part) for part in line.split("...")), rest)
        if found is None:
            return line
        rest = rest[found.end() :]
    return None


def follow(done: Sequence[Save | Commands], folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
    """Does what the page says, in a folder; raises an AssertionError if a command fails or shows something else."""
    state = folder / ".environment"
    for action in done:
        if isinstance(action, Save):
            (folder / action.name).write_text(action.text)
            continue
        print(f"\n$ {' | '.join(action.terminals)}".rstrip(), flush=True)
        # The environment of the first terminal goes on, as that of a reader's shell does, but not that of TF_CONFIG.
        wrapped = [
            f"[ ! -e {state} ] || . {state}\nset -euo pipefail\n{text}\n"
            + (f"unset TF_CONFIG\nexport -p > {state}\n" if number == 0 else "")
            for number, text in enumerate(action.terminals)
        ]
        running = [
            start(["bash", "-c", text], cwd=folder, env={**_sources(), **(environment or {})}) for text in wrapped
        ]
        ended = [finish(process, deadline_seconds=DEADLINE_SECONDS) for process in running]
        for text, process in zip(action.terminals, ended, strict=True):
            assert process.code == 0, f"expected the exit code 0 of {text!r}, received {process.code}"
        line = missing_line(action.output, "\n".join(process.text for process in ended))
        assert line is None, f"expected the line {line!r} of {action.terminals}, received no such line"


def _sources() -> dict[str, str]:
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{ROOT.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": REPOSITORY,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # A reader has the installed package only, and TensorFlow's lines.
        "PYTHONPATH": "",
        "TF_CPP_MIN_LOG_LEVEL": "0",
    }


def after(done: Sequence[Save | Commands], command: str) -> list[Save | Commands]:
    """Returns the actions from the one before the first that has a command, which saves its program."""
    for number, action in enumerate(done):
        if isinstance(action, Commands) and any(command in text for text in action.terminals):
            return list(done[max(0, number - 1) :])
    raise ValueError(f"expected the command {command!r} in the page, received none")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.followed", description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--skip-until", metavar="COMMAND", help="begin with the program of this command")
    arguments = parser.parse_args()
    done = actions(arguments.page.read_text())
    if arguments.skip_until:
        done = after(done, arguments.skip_until)
    with tempfile.TemporaryDirectory() as folder:
        follow(done, Path(folder))
    print(f"{arguments.page}: followed to the end", file=sys.stderr)


if __name__ == "__main__":
    main()
