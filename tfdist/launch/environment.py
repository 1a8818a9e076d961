"""The environment of each rank: TF_CONFIG, its share of the CPUs, and what the user adds. Pure functions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from tfdist.launch.spec import LaunchSpec, Rank

PS_INTEROP_THREADS = 8
"""A coordinator's closures, and the remote calls they wait for, block threads of this pool: with fewer it hangs."""


def available_cores() -> int:
    """Returns how many CPUs this process may run on.

    Example:
        >>> available_cores() >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def address(host: str, port: int) -> str:
    """Returns "host:port", an IPv6 address in brackets.

    Example:
        >>> address("localhost", 2222), address("::1", 2222)
        ('localhost:2222', '[::1]:2222')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tf_config(rank: Rank, ports: Mapping[Rank, int], *, host: str) -> str:
    """Returns TF_CONFIG for one rank.

    Args:
        rank: The rank that will read it.
        ports: The port of each rank of the cluster, in order of role and index.
        host: Where all of them listen.

    Example:
        >>> tf_config(Rank("evaluator", 0), {Rank("worker", 0): 2222}, host="localhost")
        '{"cluster": {"worker": ["localhost:2222"]}, "task": {"type": "evaluator", "index": 0}}'
    """
    cluster: dict[str, list[str]] = {}
    for member, port in ports.items():
        cluster.setdefault(member.role, []).append(address(host, port))
    return json.dumps({"cluster": cluster, "task": {"type": rank.role, "index": rank.index}})


def thread_share(ranks: Sequence[Rank], *, cores: int, requested: int | None = None) -> int:
    """Returns how many CPU threads each computing rank gets; 0 means that nothing is set.

    Args:
        ranks: All ranks of the job.
        cores: The CPUs that they share.
        requested: A number that overrides the division.

    Example:
        >>> thread_share([Rank("worker", 0), Rank("worker", 1)], cores=8)
        4
    """
    if requested is not None:
        return requested
    return max(1, cores // max(1, sum(computes(rank, ranks) for rank in ranks)))


def computes(rank: Rank, ranks: Sequence[Rank]) -> bool:
    """Returns whether a rank trains all the time: a worker, or a chief that does not merely coordinate."""
    return rank.role == "worker" or (rank.role == "chief" and not has_ps(ranks))


def has_ps(ranks: Sequence[Rank]) -> bool:
    """Returns whether the ranks make a parameter server cluster."""
    return any(rank.role == "ps" for rank in ranks)


def thread_env(rank: Rank, ranks: Sequence[Rank], *, share: int) -> dict[str, str]:
    """Returns the variables that bound a rank's CPU threads.

    An explicit `tf.config.threading.set_*` in the program wins over the two that TensorFlow reads. Parameter servers
    and a coordinator are idle most of the time, so only their pool of blocking operations is set.

    Args:
        rank: The rank.
        ranks: All ranks of the job.
        share: What `thread_share` returned.

    Example:
        >>> thread_env(Rank("worker", 0), [Rank("worker", 0)], share=1)
        {'OMP_NUM_THREADS': '1', 'TF_NUM_INTRAOP_THREADS': '1', 'TF_NUM_INTEROP_THREADS': '2'}
    """
    if share == 0:
        return {}
    variables: dict[str, str] = {}
    if computes(rank, ranks) or rank.role == "evaluator":
        variables |= {"OMP_NUM_THREADS": str(share), "TF_NUM_INTRAOP_THREADS": str(share)}
    least = PS_INTEROP_THREADS if has_ps(ranks) else 2
    return variables | {"TF_NUM_INTEROP_THREADS": str(max(least, share))}


def rank_env(
    rank: Rank, spec: LaunchSpec, *, ports: Mapping[Rank, int], share: int, launch_id: str, base: Mapping[str, str]
) -> dict[str, str]:
    """Returns the whole environment of one rank.

    Args:
        rank: The rank.
        spec: The job; its `env` wins over everything but the launcher's own variables.
        ports: The port of each rank of the cluster.
        share: What `thread_share` returned.
        launch_id: The job's unique name.
        base: The environment to add to; it is left as it is, and its thread variables win.
    """
    return {
        **thread_env(rank, spec.ranks, share=share),
        **base,
        "PYTHONUNBUFFERED": "1",
        **spec.env,
        "TF_CONFIG": tf_config(rank, ports, host=spec.host),
        "TFDIST_LAUNCH_ID": launch_id,
    }
