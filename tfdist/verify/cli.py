"""The command line of `tfdist verify`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist._suggestions import Parser
from tfdist.verify.values import topologies

OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of Python whose value can be the next word."""


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options before the program."""
    result = Parser(
        prog="tfdist verify",
        usage="tfdist verify [OPTIONS] -- python PROGRAM [ARGUMENTS]",
        description="Runs the first steps of a Keras program on one device and on several replicas and workers of this "
        "machine, and compares all losses, metrics and weights. The program calls tfdist.create_strategy, and trains "
        "with fit, train_on_batch or strategy.run.",
        epilog="Exit code: 0 if all are equal, 1 if some differ, 2 if the program failed.",
    )
    result.add_argument("--steps", type=int, default=5, help="number of steps to compare (default: %(default)s)")
    result.add_argument("--replicas", default="2,4", help="numbers of replicas in a process (default: %(default)s)")
    result.add_argument("--workers", type=int, default=2, help="number of workers; 0 for none (default: %(default)s)")
    result.add_argument("--json", type=Path, help="file for the result as JSON")
    result.add_argument(
        "--timeout-seconds", type=float, default=600.0, help="time limit of each run (default: %(default)s)"
    )
    return result


def program_in(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the Python interpreter with its options, and the words of a program.

    Args:
        words: words such as `python train.py --epochs 3`, `train.py` or `-m package.train`.

    Raises:
        ValueError: if there is no Python program.

    Example:
        >>> from tfdist.verify.cli import program_in
        >>> program_in(["/usr/bin/python3", "-u", "train.py", "--epochs", "3"])
        (('/usr/bin/python3', '-u'), ('train.py', '--epochs', '3'))
    """
    words = list(words)
    python = [sys.executable]
    if words and Path(words[0]).name.startswith("python"):
        first = words.pop(0)
        python = [sys.executable if first in ("python", "python3") else first]
        while words and words[0].startswith("-") and words[0][:2] not in ("-m", "-c", "-"):
            python.append(words.pop(0))
            if words and python[-1] in OPTIONS_WITH_VALUE:
                python.append(words.pop(0))
    is_module = words[:1] == ["-m"] and len(words) > 1
    if not is_module and not (words and words[0].endswith(".py")):
        raise ValueError(
            f"expected a Python program after --, received {' '.join(words) or 'nothing'}; write it as in "
            "`tfdist verify -- python train.py`."
        )
    return tuple(python), tuple(words)


def numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers in a text such as "2,4"; none for an empty text.

    Raises:
        ValueError: if a part is not a number.
    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"expected numbers separated by commas for --replicas, received {text!r}.") from None


def _written(file: Path) -> Path:
    """Returns what has to be writable, so that a file can be written: the file, or else its folder."""
    return file if file.exists() else file.absolute().parent


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tfdist verify ...` and returns its exit code.

    Args:
        argv: command-line arguments after `tfdist verify`; None takes those of this process.

    Example:
        >>> from tfdist.verify import main
        >>> main(["--", "python", "train.py"])
        2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    split = words.index("--") if "--" in words else len(words)
    given = parser().parse_args(words[:split])
    try:
        python, command = program_in(words[split + 1 :])
        others = topologies(replicas=numbers(given.replicas), workers=given.workers)
        if command[0] != "-m" and not Path(command[0]).is_file():
            raise ValueError(f"expected a program that exists, received {command[0]}.")
        if given.steps < 1:
            raise ValueError(f"expected --steps to be at least 1, received {given.steps}.")
        if not given.timeout_seconds > 0:
            raise ValueError(f"expected --timeout-seconds above 0, received {given.timeout_seconds}.")
        if given.json and not given.json.absolute().parent.is_dir():
            raise ValueError(f"expected a file in a folder that exists for --json, received {given.json}.")
        if given.json and (given.json.is_dir() or not os.access(_written(given.json), os.W_OK)):
            raise ValueError(f"expected a file that can be written for --json, received {given.json}; give another.")
    except ValueError as error:
        print(f"tfdist verify: {error}", file=sys.stderr)
        return 2
    from tfdist.verify.report import as_json, print_report
    from tfdist.verify.verification import Verifier

    verifier = Verifier(
        command,
        steps=given.steps,
        python=python,
        timeout_seconds=given.timeout_seconds,
        say=lambda line: print(f"tfdist verify: {line}", file=sys.stderr),
    )
    try:
        verification = verifier.verify(others)
    except KeyboardInterrupt:
        print("tfdist verify: interrupted; all processes have ended", file=sys.stderr)
        return 130
    print_report(verification)
    if given.json:
        given.json.write_text(as_json(verification) + "\n")
    return verification.exit_code
