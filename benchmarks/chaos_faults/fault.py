"""Faults, what a run with a fault has shown, and how faults are drawn. Plain values and pure functions."""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: the kind in words, such as "SIGKILL at a system call".
        where: what the fault may hit.
        setups: the runs in which it may happen.
    """

    name: str
    where: tuple[str, ...]
    setups: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault in one run.

    Attributes:
        level: "writer", "launcher" or "training".
        number: its number among the faults of the level.
        kind: name of its kind.
        where: what it hits.
        setup: the run in which it happens.
        moment: when it happens, from 0 (the beginning of the run) to 1 (its end).
    """

    level: str
    number: int
    kind: str
    where: str
    setup: str
    moment: float

    @property
    def name(self) -> str:
        """The name by which `chaos.py --only` finds the fault."""
        return f"{self.level}:{self.number}"


def draw(level: str, number: int, seed: int, kinds: Sequence[Kind]) -> Fault:
    """Returns a fault of a level, which depends only on the arguments.

    The kinds take turns, so that a small number of faults has all of them. All else is random.

    Args:
        level: the level.
        number: number of the fault among those of the level.
        seed: seed of all faults.
        kinds: the kinds of the level.

    Example:
        >>> kinds = [Kind(name="SIGKILL", where=("worker 0", "worker 1"), setups=("two workers",))]
        >>> draw("launcher", 7, 1, kinds) == draw("launcher", 7, 1, kinds)
        True
    """
    random_numbers = random.Random(f"{seed}:{level}:{number}")
    kind = kinds[number % len(kinds)]
    return Fault(
        level=level,
        number=number,
        kind=kind.name,
        where=random_numbers.choice(kind.where),
        setup=random_numbers.choice(kind.setups),
        moment=random_numbers.random(),
    )


class Trouble(enum.Enum):
    """What must not happen."""

    HANG = "hangs"
    ORPHAN = "orphans"
    TORN = "torn"
    WRONG = "wrong"
    OTHER = "other"
    """A file that is left, a message that is missing or unclear, or an error of this program."""


@dataclasses.dataclass
class Found:
    """Collects what a run with a fault has shown.

    Attributes:
        troubles: what must not have happened, in words.
        recovery_seconds: time from SIGKILL to the next step that had not been made before; None if it was not measured.
        end: how the run ended, in words.
    """

    troubles: list[tuple[Trouble, str]] = dataclasses.field(default_factory=list)
    recovery_seconds: float | None = None
    end: str = ""

    def add(self, trouble: Trouble, text: str) -> None:
        """Notes something that must not have happened."""
        self.troubles.append((trouble, text))

    def check(self, condition: object, text: str, trouble: Trouble = Trouble.OTHER) -> None:
        """Notes something if a condition does not hold."""
        if not condition:
            self.add(trouble, text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """A fault and what the run with it has shown.

    Attributes:
        fault: the fault.
        found: what the run has shown.
        seconds: how long the run and its checks took.
        folder: the files of the run.
    """

    fault: Fault
    found: Found
    seconds: float
    folder: Path
