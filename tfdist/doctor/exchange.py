"""Exchange: what this task knows of the others, shared by the threads that talk to them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from tfdist.doctor.facts import Facts
from tfdist.doctor.identity import Rival


class Exchange:
    """The facts of this task and of those that it has heard of.

    Args:
        own: the facts of this task.

    Attributes:
        has_report: set when the facts of this task are complete.
        has_reported: set, on the chief, when it has printed its report.
        is_released: set, on another task, when the chief has told it so.
    """

    def __init__(self, own: Facts) -> None:
        self.has_report = threading.Event()
        self.has_reported = threading.Event()
        self.is_released = threading.Event()
        self._own = own
        self._changed = threading.Condition()
        # By the unique text of the process: two processes may have the same name.
        self._heard: dict[str, Facts] = {}
        self._reached: dict[str, Facts] = {}
        self._reports: dict[str, Facts] = {}
        self._rivals: list[Rival] = []
        self._delivering = 0

    @property
    def own(self) -> Facts:
        """The facts of this task."""
        return self._own

    def complete(self, own: Facts) -> None:
        """Replaces the facts of this task by the complete ones."""
        self._own = own
        self.has_report.set()

    def note_hello(self, facts: Facts) -> None:
        """Takes notice of a task that has connected to this one."""
        self._note(self._heard, facts)

    def note_reached(self, facts: Facts) -> None:
        """Takes notice of a task that this one has connected to."""
        self._note(self._reached, facts)

    def note_report(self, facts: Facts) -> None:
        """Takes notice of the complete facts of a task."""
        self._note(self._reports, facts)

    def note_rival(self, rival: Rival) -> None:
        """Takes notice of a process that has no port, because this task or a peer has it."""
        with self._changed:
            if rival not in self._rivals:
                self._rivals.append(rival)
            self._changed.notify_all()

    def _note(self, known: dict[str, Facts], facts: Facts) -> None:
        with self._changed:
            if facts.identity.unique != self._own.identity.unique:
                known[facts.identity.unique] = facts
            self._changed.notify_all()

    def touch(self) -> None:
        """Makes `wait_for` look at its condition again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], *, deadline: float) -> bool:
        """Waits until a condition on this object is true, and returns whether it is.

        Args:
            condition: called whenever something has changed.
            deadline: when to give up, in seconds of time.monotonic().
        """
        with self._changed:
            return self._changed.wait_for(condition, max(0.0, deadline - time.monotonic()))

    @contextlib.contextmanager
    def delivering(self) -> Iterator[None]:
        """Marks that another task waits for the word of this task that it may end."""
        with self._changed:
            self._delivering += 1
        try:
            yield
        finally:
            with self._changed:
                self._delivering -= 1
                self._changed.notify_all()

    def wait_until_delivered(self, *, deadline: float) -> bool:
        """Waits until the word has gone to all tasks that wait for it, and returns whether it has.

        Args:
            deadline: when to give up, in seconds of time.monotonic().
        """
        return self.wait_for(lambda: self._delivering == 0, deadline=deadline)

    def rivals(self) -> list[Rival]:
        """Returns the processes that have no port."""
        with self._changed:
            return list(self._rivals)

    def heard(self) -> list[Facts]:
        """Returns the first facts of all processes that have connected."""
        with self._changed:
            return list(self._heard.values())

    def reached(self) -> set[str]:
        """Returns the names of the tasks that this one has talked to."""
        with self._changed:
            return {facts.identity.task for facts in self._reached.values()}

    def reported(self) -> set[str]:
        """Returns the names of the tasks whose complete facts have come."""
        with self._changed:
            return {facts.identity.task for facts in self._reports.values()}

    def known(self) -> list[Facts]:
        """Returns the newest facts of all other processes."""
        with self._changed:
            return list({**self._heard, **self._reached, **self._reports}.values())
