"""The shared directory: writable, the same on all tasks, with atomic renames, locks and fsync."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tfdist.doctor.finding import Finding, Verdict, seconds_text

CHECK = "directory"
WARN_SECONDS = 1.0

_MOUNT = "mount the same file system at this path on all hosts"
NO_ANSWER = "the file system has not answered"
# What to do, by a part of the error.
_ACTIONS = {
    "No such file": f"make it, or {_MOUNT}",
    "Not a directory": "give the path of a directory, and not of a file",
    "Read-only file system": "mount it so that all tasks may write",
    NO_ANSWER: "check its file server and the network to it, or give more --timeout-seconds",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Renames:
    """What a task saw while it read a file again and again that another task replaced all the time.

    Args:
        reads: how many times it opened the file.
        versions: how many different contents it saw.
        missing: how many times there was no file.
        torn: how many times the content was incomplete or mixed.
        backwards: how many times an older content came after a newer one.
        stale: how many times the file system refused to read a file that had been replaced.
    """

    reads: int = 0
    versions: int = 0
    missing: int = 0
    torn: int = 0
    backwards: int = 0
    stale: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Directory:
    """What a task found in the shared directory.

    Args:
        path: the directory.
        error: why the task could not write there; "" if it could.
        fsync_seconds: how long it took to bring a file of a mebibyte to the disk.
        lock_error: why it could not lock a file of its own; "" if it could.
        sight_seconds: how long it took until the files of each other task were there; None if they never were.
        renames_of: the task whose renames it watched; "" if none was there.
        renames: what it saw.
        foreign_lock: "held" if a lock of that task was respected, "free" if this task could take it too, "" if nothing
            is known.
    """

    path: str
    error: str = ""
    fsync_seconds: float = 0.0
    lock_error: str = ""
    sight_seconds: dict[str, float | None] = dataclasses.field(default_factory=dict)
    renames_of: str = ""
    renames: Renames = dataclasses.field(default_factory=Renames)
    foreign_lock: str = ""


def decide(directories: Mapping[str, Directory]) -> list[Finding]:
    """Returns at least one finding for each task.

    Args:
        directories: what each task found; tasks without the option --directory are left out.

    Example:
        >>> good = Directory(path="/data", sight_seconds={"worker 1": 0.0}, foreign_lock="held")
        >>> decide({"worker 0": good})[0].text
        '/data is shared; renames are atomic, locks and fsync work'
        >>> alone = dataclasses.replace(good, sight_seconds={"worker 1": None})
        >>> decide({"worker 0": alone})[0].text
        '/data is not shared: the files of worker 1 are not there'
        >>> torn = dataclasses.replace(good, renames_of="worker 1", renames=Renames(reads=200, versions=9, missing=3))
        >>> decide({"worker 0": torn})[0].text
        'renames in /data are not atomic: of 200 reads of a file that worker 1 replaced, 3 found no file'
        >>> decide({"worker 0": Directory(path="/data", error="Permission denied")})[0].text
        'cannot write to /data: Permission denied'
    """
    findings: list[Finding] = []
    for task, own in directories.items():
        problems = _problems(own)
        findings += [
            Finding(check=CHECK, task=task, verdict=verdict, text=text, action=action)
            for verdict, text, action in problems
        ]
        if not problems:
            shared = "is shared" if own.sight_seconds else "can be written to"
            text = f"{own.path} {shared}; renames are atomic, locks and fsync work"
            findings.append(Finding(check=CHECK, task=task, verdict="pass", text=text))
    return findings


def _problems(own: Directory) -> list[tuple[Verdict, str, str]]:
    if own.error:
        actions = (action for part, action in _ACTIONS.items() if part in own.error)
        action = next(actions, "check its owner, its room and its quota")
        return [("fail", f"cannot write to {own.path}: {own.error}", action)]
    found: list[tuple[Verdict, str, str]] = []
    unseen = [task for task, seconds in own.sight_seconds.items() if seconds is None]
    if unseen:
        found.append(("fail", f"{own.path} is not shared: the files of {_listed(unseen)} are not there", _MOUNT))
    late = {task: seconds for task, seconds in own.sight_seconds.items() if seconds and seconds > WARN_SECONDS}
    if late:
        slowest = max(late, key=lambda task: late[task])
        text = f"the files of {slowest} were seen in {own.path} only after {seconds_text(late[slowest])}"
        found.append(("warn", text, "let the file system cache names for less time (NFS: lookupcache=positive)"))
    found += _of_renames(own)
    if own.lock_error:
        text = f"files in {own.path} cannot be locked: {own.lock_error}"
        action = "use a file system with flock: without it, what killed writers leave is not removed"
        found.append(("warn", text, action))
    elif own.foreign_lock == "free":
        text = f"a lock in {own.path} that {own.renames_of} holds could be taken a second time"
        action = "mount it so that locks are seen by all hosts (NFS: version 4, without nolock and local_lock)"
        found.append(("fail", text, action))
    if own.fsync_seconds > WARN_SECONDS:
        text = f"fsync of 1 MiB in {own.path} took {seconds_text(own.fsync_seconds)}"
        found.append(("warn", text, "use a faster file system, or make snapshots less often"))
    return found


def _of_renames(own: Directory) -> list[tuple[Verdict, str, str]]:
    seen = own.renames
    bad = [
        text
        for count, text in (
            (seen.missing, f"{seen.missing} found no file"),
            (seen.torn, f"{seen.torn} found an incomplete one"),
            (seen.backwards, f"{seen.backwards} found an older one than before"),
        )
        if count
    ]
    if bad:
        text = f"renames in {own.path} are not atomic: of {seen.reads} reads of a file that {own.renames_of} replaced, "
        action = "use a file system with atomic renames, and not an object store that is mounted as one"
        return [("fail", text + " and ".join(bad), action)]
    if seen.stale:
        text = f"{seen.stale} of {seen.reads} reads of a file that {own.renames_of} replaced in {own.path} failed"
        return [("warn", text + " (stale file handle)", "mount NFS with version 4, or read again after such an error")]
    if seen.versions == 1 and seen.reads > 1:
        text = f"a file that {own.renames_of} replaced in {own.path} kept its old content here for seconds"
        return [("warn", text, "let the file system cache for less time (NFS: actimeo=1)")]
    return []


def _listed(tasks: Sequence[str]) -> str:
    return ", ".join(tasks) if len(tasks) <= 4 else f"{', '.join(tasks[:3])} and {len(tasks) - 3} more tasks"
