"""Suggestions for words of a command line that are misspelt."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable
from typing import NoReturn

_UNKNOWN = re.compile(r"unrecognized arguments: (--?[\w-]+)")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Returns a question with the choice that a word resembles; an empty text if it resembles none.

    Args:
        word: what the user wrote.
        choices: what the program understands.

    Example:
        >>> did_you_mean("lunch", ["launch", "train"]), did_you_mean("xyz", ["launch", "train"])
        ('did you mean launch? ', '')
    """
    found = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean {found[0]}? " if found else ""


class Parser(argparse.ArgumentParser):
    """A parser that suggests the option that the user may have meant.

    Example:
        >>> import contextlib, sys
        >>> parser = Parser(prog="program")
        >>> _ = parser.add_argument("--workers")
        >>> with contextlib.suppress(SystemExit), contextlib.redirect_stderr(sys.stdout):
        ...     parser.parse_args(["--wokers=2"])
        usage: program [-h] [--workers WORKERS]
        program: error: unrecognized arguments: --wokers=2; did you mean --workers?
    """

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the message, and ends the program with code 2.

        Args:
            message: what is wrong.
        """
        unknown = _UNKNOWN.match(message)
        if unknown:
            options = [option for action in self._actions for option in action.option_strings if option[:2] == "--"]
            suggestion = did_you_mean(unknown[1], options).strip()
            message = f"{message}; {suggestion}" if suggestion else message
        super().error(message)
