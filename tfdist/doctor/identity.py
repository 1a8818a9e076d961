"""Identity: which process answers as a task, and on which machine."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path

from tfdist.cluster.greeting import own_incarnation

_WORD = re.compile(r"[A-Za-z0-9]{1,64}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """A process that runs tfdist doctor.

    Args:
        task: name of its task, such as "worker 1".
        unique: a text that no other process has, of letters and digits.
        host: name of its machine or container.
        process: its process id.
        machine: the same text for all containers of a machine, as long as the machine is not started again.
        incarnation: the launch and the start of its tasks, in one word; None if `tfdist launch` did not start it.

    Raises:
        ValueError: if `unique` has other characters.

    Example:
        >>> Identity(task="worker 1", unique="a", host="node3", process=17, machine="b").place
        'process 17 on node3'
    """

    task: str
    unique: str
    host: str
    process: int
    machine: str
    incarnation: str | None = None

    def __post_init__(self) -> None:
        # The text of another task comes from the network, and is a part of the names of its files.
        if not _WORD.fullmatch(self.unique):
            raise ValueError(f"expected unique to have 1 to 64 letters and digits, received {self.unique!r:.100}.")

    @property
    def place(self) -> str:
        """The process and its host in words."""
        return f"process {self.process} on {self.host}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rival:
    """A process that has no port, because another process has it.

    Args:
        task: name of its task.
        process: its process id.
    """

    task: str
    process: int


def own_identity(task: str, *, source: str = "") -> Identity:
    """Returns the identity of this process.

    Args:
        task: name of its task.
        source: what describes the cluster, see ClusterConfig.
    """
    host = socket.gethostname()
    try:
        machine = _BOOT_ID.read_text().strip()
    except OSError:
        machine = host
    return Identity(
        task=task,
        unique=uuid.uuid4().hex,
        host=host,
        process=os.getpid(),
        machine=machine,
        incarnation=own_incarnation(source),
    )


def by_host(identities: Mapping[str, Identity]) -> list[tuple[str, ...]]:
    """Returns the names of the tasks of each host.

    Args:
        identities: the identity of each task.

    Example:
        >>> one = Identity(task="worker 0", unique="a", host="node3", process=17, machine="b")
        >>> by_host({"worker 0": one, "worker 1": one})
        [('worker 0', 'worker 1')]
    """
    tasks: dict[tuple[str, str], tuple[str, ...]] = {}
    for task, identity in identities.items():
        key = (identity.machine, identity.host)
        tasks[key] = (*tasks.get(key, ()), task)
    return list(tasks.values())
