"""Task indices: no two processes are the same task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tfdist.cluster.greeting import Greeting
from tfdist.cluster.wrong_indices import CHECK_INDICES, describe
from tfdist.doctor.finding import Finding
from tfdist.doctor.identity import Identity, Rival

CHECK = "index"


def decide(seen: Iterable[Identity], rivals: Sequence[Rival]) -> list[Finding]:
    """Returns a finding for each task, and one for the processes that could not listen because of their index.

    Args:
        seen: all processes that any task has met; a process may be listed more than once.
        rivals: the processes that have no port, because another one has it.

    Example:
        >>> first = Identity(task="worker 0", unique="a", host="node0", process=1, machine="m")
        >>> second = Identity(task="worker 0", unique="b", host="node1", process=2, machine="n")
        >>> decide([first, first], [])[0].verdict
        'pass'
        >>> decide([first, second], [])[0].text
        '2 processes were started as worker 0: process 1 on node0, process 2 on node1'
        >>> decide([first], [Rival(task="worker 0", process=4711)])[0].text
        'another process (4711) was started as worker 0 at the same address'
    """
    tasks: dict[str, dict[str, Identity]] = {rival.task: {} for rival in rivals}
    for identity in seen:
        tasks.setdefault(identity.task, {})[identity.unique] = identity
    findings = []
    for task, processes in tasks.items():
        own_rivals = [Greeting(rival.task, rival.process) for rival in rivals if rival.task == task]
        if own_rivals:
            text = describe(own_rivals)
        elif len(processes) > 1:
            places = ", ".join(sorted(process.place for process in processes.values()))
            text = f"{len(processes)} processes were started as {task}: {places}"
        else:
            findings.append(Finding(check=CHECK, task=task, verdict="pass", text="one process for each task"))
            continue
        findings.append(Finding(check=CHECK, task=task, verdict="fail", text=text, action=CHECK_INDICES))
    return findings
