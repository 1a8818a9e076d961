"""The launcher's own lines: at the start, at the end, and about a failure. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tfdist.cluster import Task
from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.launch.environment import trains
from tfdist.launch.log_files import log_name
from tfdist.launch.output import TRACEBACK
from tfdist.launch.restarts import Failure
from tfdist.launch.result import Restart, TaskExit
from tfdist.launch.screen import without_colour
from tfdist.launch.spec import LaunchSpec

LAST_LINES = 30
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def count(number: int, noun: str) -> str:
    """Returns a number with its noun.

    Example:
        >>> count(1, "worker"), count(2, "worker"), count(2, "ps")
        ('1 worker', '2 workers', '2 ps')
    """
    return f"{number} {noun}" if number == 1 or noun == "ps" else f"{number} {noun}s"


def names(tasks: Sequence[Task]) -> str:
    """Returns the names of tasks, separated by commas.

    Example:
        >>> names([Task("chief", 0), Task("worker", 0)])
        'chief 0, worker 0'
    """
    return ", ".join(task.name for task in tasks)


def header(tasks: Sequence[Task], ports: Mapping[Task, int], *, host: str, share: int, log_dir: Path) -> str:
    """Returns the line that describes the tasks of a run.

    Example:
        >>> header([Task("worker", 0)], {Task("worker", 0): 2222}, host="localhost", share=1, log_dir=Path("logs"))
        '1 worker on localhost port 2222; 1 thread each; logs in logs'
    """
    jobs = list(dict.fromkeys(task.job for task in tasks))
    counts = ", ".join(count(sum(task.job == job for task in tasks), job) for job in jobs)
    where = f" on {host} {'port' if len(ports) == 1 else 'ports'} {', '.join(map(str, ports.values()))}"
    limited = sorted({task.job for task in tasks if trains(task, tasks) or task.job == "evaluator"})
    threads = count(share, "thread") + (" each" if len(limited) == len(jobs) else f" for each {' and '.join(limited)}")
    return f"{counts}{where if ports else ''}; {threads if share else 'threads not set'}; logs in {log_dir}"


def success(tasks: Sequence[Task], exits: Sequence[TaskExit], *, seconds: float) -> str:
    """Returns the line at the end of a run that succeeded.

    Example:
        >>> tasks = [Task("worker", 0), Task("worker", 1)]
        >>> success(tasks, [TaskExit(task=task, code=0, seconds=2.5) for task in tasks], seconds=2.6)
        'all 2 tasks ended with exit code 0 after 2.6 s'
    """
    succeeded = {end.task for end in exits if end.code == 0 and not end.signalled}
    if len(succeeded) == len(tasks):
        subject = f"all {count(len(tasks), 'task')}" if len(tasks) > 1 else names(tasks)
        return f"{subject} ended with exit code 0 after {seconds:.1f} s"
    line = f"{names([task for task in tasks if task in succeeded])} ended with exit code 0 after {seconds:.1f} s"
    stopped = {end.task for end in exits if end.signalled}
    line += f"; the launcher then ended {names([task for task in tasks if task in stopped])}" if stopped else ""
    others = [end for end in exits if end.code != 0 and not end.signalled]
    return line + "".join(f"; {end.task.name} then ended with {end.how}" for end in others)


def failed(failure: Failure, *, brief: bool = False) -> str:
    """Returns the words about a task that failed.

    Args:
        failure: the failure.
        brief: whether to leave out when the task failed.

    Example:
        >>> failed(Failure(task=Task("worker", 1), how="exit code 3", code=3, at=60.0, ran_seconds=60.0, step=811))
        'worker 1 failed (exit code 3, 60.0 s after the start, at step 812)'
    """
    what = "asked for a restart" if failure.asks_for_restart else "failed"
    where = "" if failure.step is None else f", at {failure.place}"
    when = "" if brief else f", {failure.at:.1f} s after the start"
    return f"{failure.task.name} {what} ({failure.how}{when}{where})"


def failure(
    first: TaskExit,
    exits: Sequence[TaskExit],
    *,
    tail: Sequence[str],
    log: Path,
    tracebacks: Mapping[Task, float] = MappingProxyType({}),
    attempt: int = 0,
    cause: Task | None = None,
    cause_tail: Sequence[str] = (),
) -> str:
    """Returns the report of a run that failed.

    Args:
        first: the end of the task that ended first with a failure.
        exits: how all tasks ended.
        tail: the last lines of that task's output.
        log: the log file of that task.
        tracebacks: when each task wrote its last traceback, in seconds after the start. A task may raise an exception
            first and still end last, since TensorFlow takes time to shut down.
        attempt: how often the tasks had been restarted, which is part of the names of the log files.
        cause: the task whose exception probably made the first one fail, and which is then named as the first; None if
            there is none.
        cause_tail: the last lines of the output of that task.
    """
    onset = min(first.seconds, tracebacks.get(first.task, first.seconds))
    what = "asked for a restart" if first.code == RESTART_CODE else "failed first"
    task, how, seconds = first.task, first.how, first.seconds
    if cause is not None:
        task, how, seconds = cause, "an exception", tracebacks[cause]
    lines = [f"{task.name} {what}: {how}, {seconds:.1f} s after the start"]
    later = [end for end in exits if end.task != task and end.code != 0 and not end.signalled]
    for end in sorted(later, key=lambda end: end.seconds):
        delay = end.seconds - seconds
        lines.append(f"  {end.task.name} ended by itself {delay:.2f} s later ({end.how}), probably as a consequence")
    suspects = [(other, at) for other, at in tracebacks.items() if at < onset and other not in (first.task, cause)]
    for other, at in sorted(suspects, key=lambda item: item[1]):
        where = log.parent / log_name(other, attempt)
        lines.append(f"  {other.name} had written a traceback {onset - at:.2f} s earlier: see {where}")
    if cause is not None:
        lines += _last_lines(cause, cause_tail, log.parent / log_name(cause, attempt))
    lines += _last_lines(first.task, tail, log)
    return "\n".join(lines)


def _last_lines(task: Task, tail: Sequence[str], log: Path) -> list[str]:
    shown = lines_to_show(tail)
    head = f"  last lines of {task.name} ({log}):" if shown else f"  {task.name} wrote nothing ({log})"
    return [head, *(f"    {without_colour(line)}" for line in shown)]


def logs(log_dir: Path, *, left_out: int) -> str:
    """Returns the line that says where the log files are.

    Args:
        log_dir: the directory of the log files.
        left_out: how many lines of dependencies were not shown.

    Example:
        >>> logs(Path("logs"), left_out=0), logs(Path("logs"), left_out=9)
        ('logs in logs', 'logs in logs; 9 log lines of dependencies are only there, --show all shows them')
    """
    only = "log line of dependencies is only there" if left_out == 1 else "log lines of dependencies are only there"
    return f"logs in {log_dir}{f'; {left_out} {only}, --show all shows them' if left_out else ''}"


def next_step(spec: LaunchSpec, log: Path | None) -> str:
    """Returns the line that says what to do after a failure.

    Args:
        spec: the tasks of the run.
        log: the log file of the task that is named as the first; None if no task failed, as after a timeout.

    Example:
        >>> next_step(LaunchSpec(command=("train.py",), workers=2), Path("logs/worker-1.log"))
        'next: read logs/worker-1.log; `tfdist launch --workers 2 -- tfdist doctor` checks what makes clusters fail'
    """
    options = [f"--workers {spec.workers}"]
    options += [f"--ps {spec.ps}"] if spec.ps else []
    options += ["--chief"] if spec.chief else []
    options += [f"--host {spec.host}"] if spec.host != "localhost" else []
    read = f"read {log}; " if log is not None else ""
    return f"next: {read}`tfdist launch {' '.join(options)} -- tfdist doctor` checks what makes clusters fail"


def restarted(restarts: Sequence[Restart]) -> str:
    r"""Returns the lines that say how often all tasks were restarted, and why.

    Example:
        >>> restarted([Restart(seconds=61.0, why="worker 1 failed (exit code 3)"), Restart(seconds=70.0, why="...")])
        '2 restarts:\n  61.0 s after the start: worker 1 failed (exit code 3)\n  70.0 s after the start: ...'
    """
    lines = [f"  {restart.seconds:.1f} s after the start: {restart.why}" for restart in restarts]
    return "\n".join([f"{count(len(restarts), 'restart')}:", *lines])


def lines_to_show(tail: Sequence[str]) -> list[str]:
    """Returns the last traceback with the tracebacks that it is chained to, or the last 30 lines if there is none.

    Example:
        >>> lines_to_show(["step 1", "Traceback (most recent call last):", "  ...", "KeyError: 3"])
        ['Traceback (most recent call last):', '  ...', 'KeyError: 3']
    """
    starts = [number for number, line in enumerate(tail) if TRACEBACK in line]
    if not starts:
        return list(tail[-LAST_LINES:])
    start = starts.pop()
    while starts and any(line.startswith(_CHAINED) for line in tail[starts[-1] : start]):
        start = starts.pop()
    return list(tail[start:])
