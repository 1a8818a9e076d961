"""The result of `tfdist test`, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tfdist.test.checks import CHECKS, Outcome

PREFIX = "tfdist test:"
_STYLES = {"pass": "green", "fail": "bold red", "not run": "yellow"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a task of `tfdist test` has found.

    Attributes:
        task: its name.
        where: how many workers there are, and what describes or started them.
        outcomes: how each check has ended.
        seconds: how long the test took.
        output: the last lines of the process that failed; "" if none did.
        error: why the test could not begin; "" if it could.
        was_ended: whether a signal ended the test, as the launcher does when another task has failed.
    """

    task: str
    where: str
    outcomes: tuple[Outcome, ...] = ()
    seconds: float = 0.0
    output: str = ""
    error: str = ""
    was_ended: bool = False

    @property
    def failures(self) -> list[Outcome]:
        """The checks that failed."""
        return [outcome for outcome in self.outcomes if outcome.verdict == "fail"]

    @property
    def has_passed(self) -> bool:
        """Whether all checks have passed."""
        return not self.error and [one.verdict for one in self.outcomes] == ["pass"] * len(CHECKS)

    def to_json(self) -> str:
        """Returns the report as one line of JSON, which from_json reads."""
        return json.dumps({**dataclasses.asdict(self), "passed": self.has_passed})

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Returns the report in a line of JSON.

        Example:
            >>> report = Report(task="worker 1", where="2 workers", outcomes=(Outcome(check="start", verdict="pass"),))
            >>> Report.from_json(report.to_json()) == report
            True
        """
        fields = json.loads(text)
        del fields["passed"]
        return cls(**{**fields, "outcomes": tuple(Outcome(**one) for one in fields["outcomes"])})


def verdict(report: Report) -> str:
    """Returns the last line of the test.

    Example:
        >>> verdict(Report(task="worker 0", where="2 workers", error="no reply"))
        'tfdist test: FAILED on 2 workers: no reply'
    """
    if report.has_passed:
        return f"{PREFIX} PASSED: all {len(report.outcomes)} checks on {report.where}, in {report.seconds:.0f} s"
    reasons = [report.error] if report.error else [f"{one.check}: {one.text}" for one in report.failures]
    return f"{PREFIX} FAILED on {report.where}: {'; '.join(filter(None, reasons)) or 'checks were not run'}"


def ordered(reports: Sequence[Report]) -> list[Report]:
    """Returns the reports, those of tasks that a signal has ended last: they only say what was running then.

    Example:
        >>> one, two = (Report(task=f"worker {n}", where="2 workers", was_ended=n == 0) for n in range(2))
        >>> [report.task for report in ordered([one, two])]
        ['worker 1', 'worker 0']
    """
    return sorted(reports, key=lambda report: report.was_ended)


def other_failures(report: Report, others: Sequence[Report]) -> list[str]:
    """Returns a line for each failure that another task has seen.

    Args:
        report: the report that is shown.
        others: the reports of the other tasks.
    """
    own = {outcome.text for outcome in report.failures}
    return [
        f"{PREFIX} {other.task}: {one.check}: {one.text}"
        for other in others
        for one in other.failures
        if one.text not in own and not other.was_ended
    ]


def as_text(report: Report, others: Sequence[Report] = (), *, console: Console | None = None) -> str:
    """Returns the table of the checks, what other tasks have seen, and the verdict.

    Args:
        report: the report of the chief.
        others: the reports of other tasks.
        console: where the text will be printed, which decides about colours; None is standard output.
    """
    console = console or Console(highlight=False)
    with console.capture() as captured:
        if report.outcomes:
            table = Table(title=f"tfdist test: {report.where}", title_justify="left")
            for heading in ("check", "result", "what was measured", "seconds"):
                table.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
            for one in report.outcomes:
                seconds = f"{one.seconds:.1f}" if one.seconds else ""
                table.add_row(one.check, f"[{_STYLES[one.verdict]}]{one.verdict}[/]", one.text, seconds)
            console.print(table)
        for line in [*report.output.splitlines(), *other_failures(report, others), verdict(report)]:
            console.print(line, markup=False, soft_wrap=True)
    return captured.get()
