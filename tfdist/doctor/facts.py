"""Facts: everything that one task has found out, which it sends to the other tasks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from tfdist.cluster import ClusterConfig
from tfdist.doctor.checks import disk, gpu, memory, shared_memory, tf_config, threads, versions
from tfdist.doctor.checks.directory import Directory
from tfdist.doctor.checks.disk import Room
from tfdist.doctor.checks.gpu import Gpus
from tfdist.doctor.checks.threads import Threads
from tfdist.doctor.identity import Identity, Rival
from tfdist.doctor.link import Link


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What one task has found out.

    Args:
        identity: the process.
        is_complete: whether the task has finished; the facts that it sends at first have no links, GPUs or renames.
        address: address of the task; "" if it has none.
        port_error: why it cannot listen on its port; "" if it can.
        versions: versions of packages.
        cluster: the address of each task in its TF_CONFIG.
        is_partial: whether its TF_CONFIG lists only some of the tasks.
        threads: thread settings.
        memory: available bytes; None if unknown.
        rooms: room on disks.
        disk_error: why that is not known; "" if it is.
        shared_memory: room in /dev/shm; None if the task cannot write there.
        directory: what it found in the shared directory; None without the option --directory.
        links: what it found when it connected to the other tasks, and to itself.
        heard: the processes that connected to it.
        rivals: the processes that have no port, because this task has it.
        gpus: its GPUs; None if they are not known yet.
    """

    identity: Identity
    is_complete: bool = False
    address: str = ""
    port_error: str = ""
    versions: dict[str, str]
    cluster: dict[str, str]
    is_partial: bool = False
    threads: Threads
    memory: int | None = None
    rooms: tuple[Room, ...] = ()
    disk_error: str = ""
    shared_memory: Room | None = None
    directory: Directory | None = None
    links: tuple[Link, ...] = ()
    heard: tuple[Identity, ...] = ()
    rivals: tuple[Rival, ...] = ()
    gpus: Gpus | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """The functions that look at this machine. Tests replace some of them.

    Args:
        versions: versions of packages.
        threads: thread settings.
        memory: available bytes.
        rooms: room on disks, given the shared directory or None.
        shared_memory: room in /dev/shm.
        gpus: GPUs, given `deadline` in seconds of time.monotonic().
        clock: seconds since 1970.
    """

    versions: Callable[[], dict[str, str]] = versions.gather
    threads: Callable[[], Threads] = threads.gather
    memory: Callable[[], int | None] = memory.gather
    rooms: Callable[[str | None], tuple[Room, ...]] = disk.gather
    shared_memory: Callable[[], Room | None] = shared_memory.gather
    gpus: Callable[..., Gpus] = gpu.gather
    clock: Callable[[], float] = time.time


def first_facts(config: ClusterConfig, identity: Identity, *, sources: Sources, port_error: str) -> Facts:
    """Returns the facts that are known at once.

    Args:
        config: the cluster.
        identity: this process.
        sources: the functions that look at this machine.
        port_error: why this task cannot listen on its port; "" if it can.
    """
    return Facts(
        identity=identity,
        address=config.address or "",
        port_error=port_error,
        versions=sources.versions(),
        cluster=tf_config.gather(config),
        is_partial=bool(config.indices),
        threads=sources.threads(),
        memory=sources.memory(),
        shared_memory=sources.shared_memory(),
    )
