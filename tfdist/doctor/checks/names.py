"""Host names: each task can look up the names of all tasks, quickly, and gets addresses that mean the right machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfdist.cluster.address import split_address
from tfdist.cluster.probe import UNRESOLVED
from tfdist.doctor.finding import Finding, seconds_text
from tfdist.doctor.link import NO_LOOK_UP, Link

CHECK = "names"
WARN_SECONDS = 1.0
_RESOLVER = "check the host name in TF_CONFIG, and that this machine's /etc/hosts or DNS knows it"


def decide(task: str, links: Sequence[Link], machines: Mapping[str, str]) -> list[Finding]:
    """Returns the findings of one task.

    Args:
        task: name of the task.
        links: its links.
        machines: which machine each known task runs on.

    Example:
        >>> good = Link(target="worker 1", address="b:1", resolved=("10.0.0.2",), name_seconds=0.01)
        >>> [finding.text for finding in decide("worker 0", [good], {})]
        ['1 host name resolves']
        >>> bad = Link(target="worker 1", address="b:1", reason=UNRESOLVED, name_seconds=0.01)
        >>> [finding.text for finding in decide("worker 0", [bad], {})]
        ["the name 'b' of worker 1 does not resolve"]
        >>> own = Link(target="worker 1", address="b:1", resolved=("127.0.1.1",), name_seconds=0.01)
        >>> [finding.text for finding in decide("worker 0", [own], {"worker 0": "x", "worker 1": "y"})]
        ["the name 'b' of worker 1 resolves to 127.0.1.1, which is this machine, but worker 1 runs on another"]
    """
    problems: list[Finding] = []
    for link in links:
        host, _ = split_address(link.address)
        name = f"the name {host!r} of {link.target}"
        if link.reason == UNRESOLVED:
            problems.append(_finding(task, "fail", f"{name} does not resolve", _RESOLVER))
        elif link.reason == NO_LOOK_UP:
            problems.append(_finding(task, "fail", f"the look-up of {name} has not returned", _RESOLVER))
        elif link.is_loopback and machines.get(link.target, machines.get(task)) != machines.get(task):
            text = f"{name} resolves to {link.resolved[0]}, which is this machine, but {link.target} runs on another"
            problems.append(_finding(task, "fail", text, "correct /etc/hosts, or write the IP address in TF_CONFIG"))
    hosts = {split_address(link.address)[0] for link in links}
    # On a busy machine a single look-up may be slow. If a name server is down, every look-up is.
    fastest: dict[str, float] = {}
    for link in links:
        if link.name_seconds is not None:
            host, _ = split_address(link.address)
            fastest[host] = min(link.name_seconds, fastest.get(host, link.name_seconds))
    slow = max(fastest, key=lambda host: fastest[host], default=None)
    if slow is not None and fastest[slow] > WARN_SECONDS:
        text = f"the look-up of the name {slow!r} took {seconds_text(fastest[slow])}"
        problems.append(_finding(task, "warn", text, "look for a name server in /etc/resolv.conf that is down"))
    if problems or not hosts:
        return problems
    text = f"{len(hosts)} host {'name resolves' if len(hosts) == 1 else 'names resolve'}"
    return [Finding(check=CHECK, task=task, verdict="pass", text=text)]


def _finding(task: str, verdict: str, text: str, action: str) -> Finding:
    return Finding(check=CHECK, task=task, verdict="fail" if verdict == "fail" else "warn", text=text, action=action)
