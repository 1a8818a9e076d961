"""The sentences of the launcher: its header, its end, and the report of a failure. Pure functions."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tfdist.launch.environment import computes
from tfdist.launch.output import TRACEBACK, without_colour
from tfdist.launch.spec import Rank

LAST_LINES = 30
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """How a rank ended.

    Args:
        rank: The rank.
        code: Its exit code, or the negative number of the signal that killed it.
        seconds: When, in seconds after the start of the job.
        told: Whether the launcher had told it to end before.
    """

    rank: Rank
    code: int
    seconds: float
    told: bool = False

    @property
    def shell_code(self) -> int:
        """The exit code as a shell reports it: 128 + signal for a rank that was killed."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def how(self) -> str:
        """For example "exit code 3" or "killed by SIGKILL"."""
        return f"exit code {self.code}" if self.code >= 0 else f"killed by {signal_name(-self.code)}"


def signal_name(number: int) -> str:
    """Returns a signal's name.

    Example:
        >>> signal_name(9)
        'SIGKILL'
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def count(number: int, noun: str) -> str:
    """Returns a number with its noun.

    Example:
        >>> count(1, "rank"), count(2, "rank"), count(2, "ps")
        ('1 rank', '2 ranks', '2 ps')
    """
    return f"{number} {noun}" if number == 1 or noun == "ps" else f"{number} {noun}s"


def names(ranks: Sequence[Rank]) -> str:
    """Returns the labels of ranks, separated by commas."""
    return ", ".join(rank.label for rank in ranks)


def header(ranks: Sequence[Rank], ports: Mapping[Rank, int], *, host: str, share: int, log_dir: Path) -> str:
    """Returns the line that says what is started.

    Example:
        >>> header([Rank("worker", 0)], {Rank("worker", 0): 2222}, host="localhost", share=1, log_dir=Path("logs"))
        '1 worker on localhost port 2222; 1 thread each; logs in logs'
    """
    roles = list(dict.fromkeys(rank.role for rank in ranks))
    what = ", ".join(count(sum(rank.role == role for rank in ranks), role) for role in roles)
    where = f" on {host} {'port' if len(ports) == 1 else 'ports'} {', '.join(map(str, ports.values()))}"
    capped = sorted({rank.role for rank in ranks if computes(rank, ranks) or rank.role == "evaluator"})
    threads = count(share, "thread") + (" each" if len(capped) == len(roles) else f" for each {' and '.join(capped)}")
    return f"{what}{where if ports else ''}; {threads if share else 'threads as they are'}; logs in {log_dir}"


def success(ranks: Sequence[Rank], exits: Sequence[RankExit], *, seconds: float) -> str:
    """Returns the line at the end of a job that succeeded."""
    ended = {item.rank for item in exits if item.code == 0 and not item.told}
    line = f"all {count(len(ranks), 'rank')} ended with 0 after {seconds:.1f} s"
    if len(ended) < len(ranks):
        line = f"{names([rank for rank in ranks if rank in ended])} ended with 0 after {seconds:.1f} s"
        told = {item.rank for item in exits if item.told}
        rest = [item for item in exits if item.code != 0 and not item.told]
        line += f"; {names([rank for rank in ranks if rank in told])} then told to end" if told else ""
        line += "".join(f"; {item.rank.label} then ended with {item.how}" for item in rest)
    return line


def failure(
    first: RankExit,
    exits: Sequence[RankExit],
    *,
    tail: Sequence[str],
    log: Path,
    tracebacks: Mapping[Rank, float] = MappingProxyType({}),
) -> str:
    """Returns the report of a job that failed.

    Args:
        first: The rank that failed first.
        exits: How all ranks ended.
        tail: The last lines of that rank.
        log: Its log file.
        tracebacks: When ranks wrote their last traceback, in seconds after the start. A rank may raise first and yet
            end last, if taking TensorFlow down takes its time.
    """
    later = [item for item in exits if item.rank != first.rank and item.code != 0 and not item.told]
    lines = [f"{first.rank.label} failed first: {first.how}, {first.seconds:.1f} s after the start"]
    for item in sorted(later, key=lambda item: item.seconds):
        delay = item.seconds - first.seconds
        lines.append(f"  {item.rank.label} ended by itself {delay:.2f} s later ({item.how}), probably in consequence")
    onset = min(first.seconds, tracebacks.get(first.rank, first.seconds))
    suspects = [(rank, seconds) for rank, seconds in tracebacks.items() if seconds < onset and rank != first.rank]
    for rank, seconds in sorted(suspects, key=lambda item: item[1]):
        lines.append(
            f"  {rank.label} had written a traceback {onset - seconds:.2f} s earlier: see {log.parent / rank.log_name}"
        )
    shown = telling_lines(tail)
    lines.append(f"  last lines of {first.rank.label} ({log}):" if shown else f"  it wrote nothing ({log})")
    lines += [f"    {without_colour(line)}" for line in shown]
    return "\n".join(lines)


def telling_lines(tail: Sequence[str]) -> list[str]:
    """Returns the lines worth showing: from the last traceback on, with what it is chained to, or the last ones.

    Example:
        >>> telling_lines(["step 1", "Traceback (most recent call last):", "  ...", "KeyError: 3"])
        ['Traceback (most recent call last):', '  ...', 'KeyError: 3']
    """
    starts = [number for number, line in enumerate(tail) if TRACEBACK in line]
    if not starts:
        return list(tail[-LAST_LINES:])
    start = starts.pop()
    while starts and any(line.startswith(_CHAINED) for line in tail[starts[-1] : start]):
        start = starts.pop()
    return list(tail[start:])
