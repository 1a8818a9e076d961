"""Decides from the facts of all tasks which checks pass. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfdist.doctor.checks import (
    clock,
    directory,
    disk,
    gpu,
    identities,
    memory,
    names,
    port,
    reach,
    shared_memory,
    tf_config,
    threads,
    versions,
)
from tfdist.doctor.checks.clock import Offset
from tfdist.doctor.facts import Facts
from tfdist.doctor.finding import Finding
from tfdist.doctor.identity import Identity, by_host


def decide(
    facts: Mapping[str, Facts],
    *,
    expected: Mapping[str, str],
    reference: str,
    processes: Sequence[Identity] = (),
    silent: Sequence[str] = (),
) -> list[Finding]:
    """Returns the findings of all checks.

    Args:
        facts: the facts of each task that has been heard of, the chief's first.
        expected: the address of each other task that should be there; "" for a task that nobody connects to.
        reference: the task whose clock is compared with the others.
        processes: further processes that have been heard of.
        silent: tasks that have been heard of, and whose report should have come.
    """
    complete = {task: own for task, own in facts.items() if own.is_complete}
    machines = {task: own.identity.machine for task, own in facts.items()}
    findings = []
    if any(own.cluster for own in facts.values()):
        clusters = {task: own.cluster for task, own in facts.items()}
        is_partial = any(own.is_partial for own in facts.values())
        findings += tf_config.decide(clusters, is_partial=is_partial)
        findings += _of_processes(facts, processes)
        findings += [port.decide(task, own.address, own.port_error) for task, own in facts.items()]
        for task, own in complete.items():
            findings += names.decide(task, own.links, machines)
        links = {task: own.links for task, own in complete.items()}
        findings += reach.decide(expected, links, list(facts), silent)
        findings += clock.decide(reference, _offsets(reference, complete))
    findings += versions.decide({task: own.versions for task, own in facts.items()})
    found = {task: own.directory for task, own in complete.items() if own.directory is not None}
    findings += directory.decide(found)
    findings += _of_hosts(facts)
    gpus = {task: own.gpus for task, own in complete.items() if own.gpus is not None}
    findings += gpu.decide(gpus) if gpus else []
    findings += threads.decide(machines, {task: own.threads for task, own in facts.items()})
    return findings


def _of_processes(facts: Mapping[str, Facts], processes: Sequence[Identity]) -> list[Finding]:
    seen = [own.identity for own in facts.values()]
    seen += [identity for own in facts.values() for identity in own.heard]
    known = [identity for identity in [*seen, *processes] if identity.task in facts]
    rivals = [rival for own in facts.values() for rival in own.rivals]
    return identities.decide(known, rivals)


def _of_hosts(facts: Mapping[str, Facts]) -> list[Finding]:
    """Returns the findings about machines and containers, one for the tasks of each."""
    findings = []
    available = {task: own.memory for task, own in facts.items()}
    for tasks in by_host({task: own.identity for task, own in facts.items()}):
        errors = dict.fromkeys(facts[task].disk_error for task in tasks if facts[task].disk_error)
        findings += [disk.unreadable(tasks, error) for error in errors]
        # The tasks of a host may have been given different directories.
        users: dict[str, list[str]] = {}
        for task in tasks:
            for room in facts[task].rooms:
                users.setdefault(room.path, []).append(task)
        rooms = {room.path: room for task in tasks for room in facts[task].rooms}
        findings += [disk.decide(users[path], room) for path, room in rooms.items()]
        memory_of_host = memory.decide(tasks, available)
        findings += [memory_of_host] if memory_of_host else []
        findings.append(shared_memory.decide(tasks, facts[tasks[0]].shared_memory))
    return findings


def _offsets(reference: str, complete: Mapping[str, Facts]) -> dict[str, Offset]:
    """Returns how far the clock of each task is ahead of that of one task."""
    found = {}
    for task, own in complete.items():
        for link in own.links:
            if link.clock is not None and link.target == reference != task:
                found[task] = Offset(seconds=-link.clock.seconds, uncertainty=link.clock.uncertainty)
    for link in complete[reference].links if reference in complete else ():
        if link.clock is not None and link.target != reference:
            found[link.target] = link.clock
    return found
