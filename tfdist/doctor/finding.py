"""Finding: what one check found on one task, and what to do about it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

Verdict = Literal["pass", "warn", "fail"]

_Value = TypeVar("_Value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check on one task.

    Args:
        check: name of the check, such as "versions".
        task: name of the task, such as "worker 1"; several names are separated by commas.
        verdict: "pass", "warn" for what may disturb a training, "fail" for what breaks it.
        text: what was found, without a full stop.
        action: what to do, without a full stop; "" for a pass.

    Raises:
        ValueError: if a verdict other than "pass" has no action.

    Example:
        >>> from tfdist.doctor import Finding
        >>> Finding(check="clock", task="worker 1", verdict="pass", text="the clocks agree").line
        'the clocks agree'
        >>> Finding(check="disk", task="worker 1", verdict="fail", text="no room", action="remove files").line
        'no room; remove files'
    """

    check: str
    task: str
    verdict: Verdict
    text: str
    action: str = ""

    def __post_init__(self) -> None:
        if self.verdict != "pass" and not self.action:
            raise ValueError(f"expected an action for a finding of the verdict {self.verdict!r}, received none.")

    @property
    def line(self) -> str:
        """The text and the action in one line."""
        return f"{self.text}; {self.action}" if self.action else self.text

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks."""
        return self.task.split(", ")


def exit_code(findings: Iterable[Finding]) -> int:
    """Returns 1 if any check failed, else 0.

    Example:
        >>> exit_code([Finding(check="clock", task="worker 1", verdict="warn", text="late", action="set it")])
        0
        >>> exit_code([Finding(check="disk", task="worker 1", verdict="fail", text="full", action="remove files")])
        1
    """
    return int(any(finding.verdict == "fail" for finding in findings))


def usual(values: Mapping[str, _Value]) -> tuple[str, _Value]:
    """Returns the most common value and the first task that has it; of equally common values, the first one.

    Args:
        values: the value of each task, at least one; the chief's first.

    Example:
        >>> usual({"chief 0": "a", "worker 0": "b", "worker 1": "b"})
        ('worker 0', 'b')
        >>> usual({"chief 0": "a", "worker 0": "b"})
        ('chief 0', 'a')
    """
    # Counter.most_common keeps the order of the first occurrences.
    value = Counter(values.values()).most_common(1)[0][0]
    return next(task for task, own in values.items() if own == value), value


def grade(value: float, *, warn: float, fail: float) -> Verdict:
    """Returns the verdict on an amount of which there should be enough.

    Args:
        value: the amount.
        warn: the verdict is "warn" below this amount.
        fail: the verdict is "fail" below this amount.

    Example:
        >>> grade(3, warn=2, fail=1), grade(1.5, warn=2, fail=1), grade(0, warn=2, fail=1)
        ('pass', 'warn', 'fail')
    """
    return "fail" if value < fail else "warn" if value < warn else "pass"


def size_text(size: float) -> str:
    """Returns a number of bytes as a text, such as "1.5 GiB".

    Example:
        >>> size_text(1.5 * 2**30), size_text(64 * 2**20), size_text(0)
        ('1.5 GiB', '64 MiB', '0 MiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def seconds_text(seconds: float) -> str:
    """Returns a duration as a text, such as "0.3 ms" or "12.5 s".

    Example:
        >>> seconds_text(0.0003), seconds_text(0.25), seconds_text(12.5), seconds_text(0.0)
        ('0.30 ms', '250 ms', '12.5 s', '0.00 ms')
    """
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
