"""Clocks: the difference between the clock of the chief and those of the other tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from tfdist.doctor.finding import Finding, seconds_text

CHECK = "clock"
WARN_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offset:
    """How far the clock of another task is ahead of this task's clock.

    Args:
        seconds: the estimate; negative if the other clock is behind.
        uncertainty: the largest possible error of the estimate, in seconds.
    """

    seconds: float
    uncertainty: float


def offset(exchanges: Iterable[tuple[float, float, float, float]]) -> Offset:
    """Returns the offset of another clock, from requests and replies as in the Network Time Protocol (RFC 5905).

    The estimate is exact if request and reply take equally long. Its error is at most half of the time that both took,
    so that the fastest exchange is the best one.

    Args:
        exchanges: for each exchange the time of sending the request, by this clock; of receiving it and of sending the
            reply, by the other clock; of receiving the reply, by this clock.

    Raises:
        ValueError: if there is no exchange.

    Example:
        >>> offset([(10.0, 15.5, 15.5, 11.0), (20.0, 25.125, 25.125, 20.25)])
        Offset(seconds=5.0, uncertainty=0.125)
    """
    found = [
        Offset(
            seconds=((received - sent) + (replied - back)) / 2,
            uncertainty=abs((back - sent) - (replied - received)) / 2,
        )
        for sent, received, replied, back in exchanges
    ]
    return min(found, key=lambda one: one.uncertainty)


def decide(reference: str, offsets: Mapping[str, Offset]) -> list[Finding]:
    """Returns a finding for each task whose clock differs, or one for all tasks.

    Args:
        reference: name of the task whose clock the others are compared with.
        offsets: how far the clock of each other task is ahead of it.

    Example:
        >>> same, late = Offset(seconds=0.0002, uncertainty=0.0001), Offset(seconds=-90.0, uncertainty=0.001)
        >>> decide("worker 0", {"worker 1": same})[0].text
        'the clocks differ by at most 0.30 ms'
        >>> for finding in decide("worker 0", {"worker 1": same, "worker 2": late}):
        ...     print(finding.verdict, finding.task, finding.text, sep=" | ")
        warn | worker 2 | its clock is 90.0 s behind that of worker 0, with an uncertainty of 1.00 ms
    """
    findings = []
    for task, one in offsets.items():
        if abs(one.seconds) - one.uncertainty > WARN_SECONDS:
            side = "ahead of" if one.seconds > 0 else "behind"
            findings.append(
                Finding(
                    check=CHECK,
                    task=task,
                    verdict="warn",
                    text=f"its clock is {seconds_text(abs(one.seconds))} {side} that of {reference}, with an "
                    f"uncertainty of {seconds_text(one.uncertainty)}",
                    action="synchronize the clocks with NTP (chrony or systemd-timesyncd): logs, snapshots and files "
                    "are ordered by time",
                )
            )
    if offsets and not findings:
        largest = max(abs(one.seconds) + one.uncertainty for one in offsets.values())
        tasks = ", ".join([reference, *offsets])
        text = f"the clocks differ by at most {seconds_text(largest)}"
        findings.append(Finding(check=CHECK, task=tasks, verdict="pass", text=text))
    return findings
