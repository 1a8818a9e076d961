"""How `--adopt` reaches the program of a task: by a folder at the front of PYTHONPATH, which has a sitecustomize."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

HOOK = Path(__file__).parents[1] / "adoption" / "site_hook"
"""The folder with the sitecustomize that calls tfdist.adopt()."""

# Options of Python without which it does not read PYTHONPATH or does not import sitecustomize: -E, -I and -S.
_WITHOUT_HOOK = "EIS"
# Options of Python whose value is the rest of the word, or the next word.
_WITH_VALUE = "WX"


def adopting_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that make Python adopt.

    Args:
        variables: all variables of the task.

    Example:
        >>> adopting_variables({"PYTHONPATH": "/lib"})["PYTHONPATH"].endswith("site_hook:/lib")
        True
    """
    before = variables.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([str(HOOK), *([before] if before else [])])}


def check_adoptable(argv: Sequence[str]) -> None:
    """Raises ValueError for a Python that would not run the hook.

    Args:
        argv: the words of the command as they are executed.

    Example:
        >>> check_adoptable(["python", "-u", "train.py", "-I"])
        >>> check_adoptable(["python3.11", "-uI", "train.py"])
        Traceback (most recent call last):
        ...
        ValueError: expected a Python that runs sitecustomize with --adopt, received the option '-uI' of python3.11; ...
    """
    if not os.path.basename(argv[0]).startswith("python"):
        return
    words = iter(argv[1:])
    for word in words:
        if not word.startswith("-") or word.startswith("--") or word[1:2] in ("", "c", "m"):
            return
        if word[1] in _WITH_VALUE:
            if len(word) == 2:
                next(words, None)
        elif set(word[1:]) & set(_WITHOUT_HOOK):
            raise ValueError(
                f"expected a Python that runs sitecustomize with --adopt, received the option {word!r} of "
                f"{os.path.basename(argv[0])}; leave the option out, or write tfdist.adopt() at the top of the program."
            )
