"""Reachability: each task can connect to each other one, in both directions, and to itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tfdist.cluster.incarnations import OTHER_LAUNCH, is_foreign_reason
from tfdist.cluster.peer_startup import ADVICE
from tfdist.cluster.probe import CLOSED, NO_REPLY, NO_ROUTE, REFUSED, SILENT, UNRESOLVED
from tfdist.cluster.wrong_indices import CHECK_INDICES, is_another_task
from tfdist.doctor.finding import Finding
from tfdist.doctor.link import NO_LOOK_UP, NOT_DOCTOR, TENSORFLOW, TRAINING, Link
from tfdist.doctor.roles import EVALUATOR, job_of

CHECK = "reach"

_ACTIONS = {
    **ADVICE,
    NO_LOOK_UP: ADVICE[UNRESOLVED],
    NOT_DOCTOR: "stop the process that holds the port, or choose another port",
    TRAINING: "run tfdist doctor on all tasks, and before the training",
    TENSORFLOW: "run tfdist doctor before the training, or with other ports",
}
# Which of several reasons explains most why nobody reaches a task.
_TELLING = (TENSORFLOW, TRAINING, NOT_DOCTOR, SILENT, REFUSED, CLOSED, NO_REPLY, NO_ROUTE, NO_LOOK_UP, UNRESOLVED)


def decide(
    expected: Mapping[str, str],
    links: Mapping[str, Sequence[Link]],
    present: Collection[str],
    silent: Collection[str] = (),
) -> list[Finding]:
    """Returns the findings about all tasks.

    Args:
        expected: the address of each task that should be there; "" for a task that nobody connects to.
        links: the links of each task whose facts are complete.
        present: the tasks that have been heard of.
        silent: the tasks that have been heard of, and whose report did not come.

    Example:
        >>> expected = {"worker 0": "a:1", "worker 1": "b:1", "worker 2": "c:1"}
        >>> def link(task, reason=""):
        ...     return Link(target=task, address=expected[task], reason=reason)
        >>> links = {"worker 0": [link("worker 1")], "worker 1": [link("worker 0", "no reply")]}
        >>> for finding in decide({"worker 0": "a:1", "worker 1": "b:1"}, links, {"worker 0", "worker 1"}):
        ...     print(finding.verdict, finding.task, finding.text, sep=" | ")
        pass | worker 0 | reaches 1 task
        fail | worker 1 | does not reach worker 0 at a:1 (no reply), but worker 0 reaches it
        >>> refused = link("worker 2", "connection refused")
        >>> links = {"worker 0": [link("worker 1"), refused], "worker 1": [link("worker 0")]}
        >>> for finding in decide(expected, links, {"worker 0", "worker 1"}):
        ...     print(finding.verdict, finding.task, finding.text, sep=" | ")
        fail | worker 2 | did not come at c:1: connection refused
        pass | worker 0 | reaches 1 task
        pass | worker 1 | reaches 1 task
        >>> links["worker 1"].append(refused)
        >>> for finding in decide(expected, links, {"worker 0", "worker 1", "worker 2"}):
        ...     print(finding.verdict, finding.task, finding.text, sep=" | ")
        fail | worker 2 | none of 2 tasks reaches it at c:1: connection refused
        pass | worker 0 | reaches 1 task
        pass | worker 1 | reaches 1 task
    """
    findings = []
    for task, address in expected.items():
        reasons = [link.reason for own in links.values() for link in own if link.target == task and link.reason]
        if task not in present:
            findings.append(_absent(task, address, reasons))
        elif task in silent:
            text = f"answered, but its report did not come{_because(reasons)}"
            action = "look in its output for why it ended, or give it more time with --timeout-seconds"
            findings.append(Finding(check=CHECK, task=task, verdict="fail", text=text, action=action))
    unreached = {task: _unreached_by_all(task, links) for task in present}
    for task, found in unreached.items():
        if found:
            text = f"none of {len(found)} tasks reaches it at {found[0].address}: {found[0].reason}"
            action = _action(found[0].reason)
            findings.append(Finding(check=CHECK, task=task, verdict="fail", text=text, action=action))
    for task, own in links.items():
        failing = [
            link
            for link in own
            if link.reason and link.target in present and (link.target == task or not unreached[link.target])
        ]
        findings += [_one_way(task, link, links) for link in failing if not _is_for_names(link)]
        reached = sum(not link.reason and link.target != task for link in own)
        if not failing and own:
            text = f"reaches {reached} {'task' if reached == 1 else 'tasks'}"
            findings.append(Finding(check=CHECK, task=task, verdict="pass", text=text))
    return findings


def _absent(task: str, address: str, reasons: Sequence[str]) -> Finding:
    if not address:
        text, action = "did not come", "start it with the other tasks, or look in its output for why it ended"
        return Finding(check=CHECK, task=task, verdict="fail", text=text, action=action)
    reason = next((one for one in reasons if is_another_task(one) or is_foreign_reason(one)), None) or min(
        reasons, key=lambda one: _TELLING.index(one) if one in _TELLING else -1, default=NO_REPLY
    )
    text = f"did not come at {address}: {reason}"
    return Finding(check=CHECK, task=task, verdict="fail", text=text, action=_action(reason))


def _unreached_by_all(task: str, links: Mapping[str, Sequence[Link]]) -> list[Link]:
    """Returns the links to a task, if there are several and all fail for the same reason."""
    found = [link for other, own in links.items() for link in own if link.target == task and other != task]
    reasons = {link.reason for link in found}
    return found if len(found) > 1 and len(reasons) == 1 and "" not in reasons else []


def _one_way(task: str, link: Link, links: Mapping[str, Sequence[Link]]) -> Finding:
    if link.target == task:
        # Some networks do not route the outer address of a container back into it. No other task needs this way.
        is_other = is_another_task(link.reason)
        text = f"does not reach itself at its own address {link.address} ({link.reason})"
        action = CHECK_INDICES if is_other else "check that this address is one of this machine's, and the port free"
        return Finding(check=CHECK, task=task, verdict="fail" if is_other else "warn", text=text, action=action)
    back = [other.reason for other in links.get(link.target, ()) if other.target == task]
    text = f"does not reach {link.target} at {link.address} ({link.reason})"
    if back == [""]:
        text += f", but {link.target} reaches it"
    # The evaluator needs only the directory of the snapshots.
    verdict = "warn" if job_of(task) == EVALUATOR else "fail"
    return Finding(
        check=CHECK,
        task=task,
        verdict="warn" if verdict == "warn" else "fail",
        text=text,
        action=f"{_action(link.reason)}, in this direction" if back == [""] else _action(link.reason),
    )


def _is_for_names(link: Link) -> bool:
    """Returns whether the check of names says all that is known."""
    return link.reason in (UNRESOLVED, NO_LOOK_UP)


def _because(reasons: Sequence[str]) -> str:
    return f" ({reasons[0]})" if reasons else ""


def _action(reason: str) -> str:
    if is_foreign_reason(reason):
        return OTHER_LAUNCH
    return CHECK_INDICES if is_another_task(reason) else _ACTIONS.get(reason, "check its machine and network")
