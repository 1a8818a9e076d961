"""Prints findings: one line each, the same lines of several tasks together, or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tfdist.doctor.examination import Result
from tfdist.doctor.finding import Finding, Verdict, exit_code

_STYLES: dict[Verdict, str] = {"pass": "green", "warn": "yellow", "fail": "bold red"}
_LONGEST_NAMES = 40


def merged(findings: Sequence[Finding], tasks: Sequence[str]) -> list[Finding]:
    """Returns the findings with those that say the same about several tasks as one.

    Args:
        findings: the findings of one or several checks.
        tasks: the names of all tasks.

    Example:
        >>> one, two = (Finding(check="port", task=f"worker {n}", verdict="pass", text="is free") for n in (0, 1))
        >>> [(finding.task, finding.text) for finding in merged([one, two], ["worker 0", "worker 1"])]
        [('all 2 tasks', 'is free')]
    """
    groups: dict[tuple[str, Verdict, str, str], list[str]] = {}
    for finding in findings:
        key = (finding.check, finding.verdict, finding.text, finding.action)
        groups.setdefault(key, []).extend(finding.tasks)
    return [
        Finding(check=check, task=task_text(names, tasks), verdict=verdict, text=text, action=action)
        for (check, verdict, text, action), names in groups.items()
    ]


def task_text(names: Sequence[str], tasks: Sequence[str]) -> str:
    """Returns the names of some tasks, or how many there are if the names are too long for a line.

    Example:
        >>> task_text(["worker 0", "worker 1"], ["worker 0", "worker 1", "worker 2"])
        'worker 0, worker 1'
        >>> task_text([f"worker {n}" for n in range(9)], [f"worker {n}" for n in range(10)])
        'worker 0 and 8 more tasks'
    """
    names = list(dict.fromkeys(names))
    if len(tasks) > 1 and set(names) == set(tasks):
        return f"all {len(tasks)} tasks"
    text = ", ".join(names)
    return text if len(text) <= _LONGEST_NAMES else f"{names[0]} and {len(names) - 1} more tasks"


def as_text(result: Result, console: Console | None = None) -> str:
    """Returns one line for each finding, and, for all tasks, a line that counts them.

    The caller prints the text, because a console of rich that prints ends the process by itself, with code 1, if the
    reader of its output has ended.

    Args:
        result: the findings.
        console: where the text will be printed, which decides about colours; None is standard output.
    """
    console = console or Console(highlight=False)
    rows = merged(result.findings, result.tasks)
    widths = [max((len(getattr(row, name)) for row in rows), default=0) for name in ("check", "task")]
    with console.capture() as captured:
        for row in rows:
            line = Text(f"{row.verdict}  ", style=_STYLES[row.verdict])
            line.append(f"{row.check:<{widths[0]}}  {row.task:<{widths[1]}}  {row.line}", style="default not bold")
            console.print(line, soft_wrap=True)
        if result.is_report:
            console.print(summary(result.findings, result.tasks), markup=False, soft_wrap=True)
    return captured.get()


def summary(findings: Sequence[Finding], tasks: Sequence[str]) -> str:
    """Returns a line that counts the findings as they are printed.

    Example:
        >>> summary([Finding(check="port", task="worker 0", verdict="pass", text="is free")], ["worker 0"])
        'tfdist doctor: worker 0: 1 pass, 0 warnings, 0 failures'
    """
    counts = Counter(row.verdict for row in merged(findings, tasks))
    names = f"{len(tasks)} tasks" if len(tasks) > 1 else "".join(tasks)
    words: tuple[tuple[Verdict, str, str], ...] = (
        ("pass", "pass", "passes"),
        ("warn", "warning", "warnings"),
        ("fail", "failure", "failures"),
    )
    counted = [f"{counts[verdict]} {one if counts[verdict] == 1 else many}" for verdict, one, many in words]
    return f"tfdist doctor: {names}: {', '.join(counted)}"


def as_json(result: Result) -> str:
    """Returns the findings as one line of JSON.

    Args:
        result: the findings.

    Example:
        >>> as_json(Result(task="worker 0", tasks=("worker 0",), findings=(), is_report=True))
        '{"task": "worker 0", "tasks": ["worker 0"], "exit_code": 0, "findings": []}'
    """
    findings = [
        {
            "check": finding.check,
            "tasks": finding.tasks,
            "verdict": finding.verdict,
            "text": finding.text,
            "action": finding.action,
        }
        for finding in result.findings
    ]
    return json.dumps(
        {
            "task": result.task,
            "tasks": list(result.tasks),
            "exit_code": exit_code(result.findings),
            "findings": findings,
        }
    )
