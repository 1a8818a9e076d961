"""What `tfdist render` knows about a scheduler."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfdist.render.job import Job, option_of

Options = Mapping[str, Any]

_WORD = re.compile(r"[^\s\x00-\x1f\"'\\]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheduler:
    """A scheduler, and how a file for it is made.

    Attributes:
        title: what messages and documents call it.
        help: one line about the file.
        suffix: end of the name of the file.
        options: the options that only some schedulers have, as for argparse's `add_argument`.
        refused: fields of a Job that the scheduler cannot honour, and why.
        text: returns the file of a job, with these options as keyword arguments.
        submit: returns the command that submits the file of this name.
    """

    title: str
    help: str
    suffix: str
    options: Mapping[str, Mapping[str, Any]]
    refused: Mapping[str, str]
    text: Callable[..., str]
    submit: Callable[[str, Job, Options], str]

    def check(self, job: Job) -> None:
        """Raises ValueError if a job has a field that the scheduler cannot honour.

        Args:
            job: the job.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(job)}
        for name, reason in self.refused.items():
            value = getattr(job, name)
            if value != defaults[name]:
                raise ValueError(f"expected no {option_of(name)} for {self.title}, received {value}; {reason}.")


def check_name(job: Job, pattern: str, *, title: str, most: int, rule: str) -> None:
    """Raises ValueError if a scheduler does not allow the name of a job.

    Args:
        job: the job.
        pattern: regular expression of the whole name.
        title: name of the scheduler.
        most: largest number of characters.
        rule: what the pattern allows, in words.
    """
    if len(job.name) > most or not re.fullmatch(pattern, job.name):
        raise ValueError(f"expected --name of at most {most} characters for {title}, {rule}, received {job.name!r}.")


def check_words(values: Mapping[str, str | Sequence[str] | None]) -> None:
    """Raises ValueError if the value of an option is no single word.

    Args:
        values: the options and their values.

    Example:
        >>> check_words({"--partition": "gpu", "--account": None})
    """
    for option, value in values.items():
        for word in [value] if isinstance(value, str) else value or ():
            if not _WORD.fullmatch(word):
                raise ValueError(f"expected {option} to be one word without quotes, received {word!r}.")
