"""The cluster of a Slurm job step, whose tasks `srun` starts.

TensorFlow's SlurmClusterResolver sorts the hosts of `n[8-11]` as text, refuses lists such as `rack[1-2]n[1-4]`, and
needs nvidia-smi (tensorflow/tensorflow#56894, #59573, #39336).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tfdist.cluster.environments.hostlist import hosts_of
from tfdist.cluster.environments.variables import number_of, text_of
from tfdist.cluster.tf_config import SINGLE_PROCESS, Fields

# Below the ports that Linux gives to outgoing connections.
_FIRST_PORT, _PORTS = 12000, 20000
# The ports of two jobs with neighbouring numbers are so far apart.
_PORTS_OF_A_JOB = 100
# Steps of one job may share its nodes. Step 1 of a job must not meet step 0 of the next job.
_JOBS_BETWEEN_STEPS = 61


def is_here(environment: Mapping[str, str]) -> bool:
    """Returns whether this process is a task of a job step; the script of sbatch itself is not.

    Args:
        environment: the environment variables.

    Example:
        >>> is_here({"SLURM_JOB_ID": "7"})
        False
    """
    return all(environment.get(name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"))


def read(environment: Mapping[str, str]) -> Fields:
    """Returns the cluster of the job step: one worker for each of its tasks.

    The ports follow from the numbers of the job and the step, so that jobs that share a node use different ports.

    Args:
        environment: the environment variables.

    Raises:
        ValueError: if a variable is missing or contradicts another one; the message names it.

    Source:
        The man page of srun, "OUTPUT ENVIRONMENT VARIABLES".

    Example:
        >>> read({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
        ...       "SLURM_STEP_NODELIST": "n[8-9]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}).jobs
        {'worker': ('n8:12700', 'n9:12700')}
    """
    if number_of({"SLURM_HET_SIZE": "1", **environment}, "SLURM_HET_SIZE") > 1:
        raise ValueError(
            f"expected a job of one component, received SLURM_HET_SIZE={environment['SLURM_HET_SIZE']}; set TF_CONFIG "
            "for the tasks of a heterogeneous job."
        )
    tasks = number_of(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    rank = number_of(environment, "SLURM_PROCID", below=max(tasks, 1))
    if tasks <= 1:
        return SINGLE_PROCESS
    nodes_name = next(name for name in _NODES if environment.get(name) or name == _NODES[-1])
    try:
        nodes = hosts_of(text_of(environment, *_NODES))
    except ValueError as error:
        raise ValueError(f"{nodes_name}: {error}") from None
    places = list(_places(environment, tasks=tasks, nodes=len(nodes)))
    _check_own_place(environment, places[rank])
    job = number_of(environment, "SLURM_JOB_ID") + number_of(environment, "SLURM_STEP_ID") * _JOBS_BETWEEN_STEPS
    first = _FIRST_PORT + (job * _PORTS_OF_A_JOB) % _PORTS
    addresses = tuple(f"{nodes[node]}:{first + local}" for node, local in places)
    return Fields({"worker": addresses}, {}, "worker", rank)


def incarnation(environment: Mapping[str, str]) -> str:
    """Returns a word that the tasks of this job step share, and that no other step has.

    Args:
        environment: the environment variables.

    Example:
        >>> incarnation({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_RESTART_COUNT": "2"})
        'slurm-7-0.2'
    """
    job, step = number_of(environment, "SLURM_JOB_ID"), number_of(environment, "SLURM_STEP_ID")
    return f"slurm-{job}-{step}.{number_of({'SLURM_RESTART_COUNT': '0', **environment}, 'SLURM_RESTART_COUNT')}"


_NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_COUNTS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")


def _places(environment: Mapping[str, str], *, tasks: int, nodes: int) -> Iterator[tuple[int, int]]:
    """Yields the node of each task, and its number on the node."""
    text = text_of(environment, *_COUNTS)
    counts: list[int] = []
    for one in text.split(","):
        found = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", one.strip())
        if found is None:
            raise ValueError(f"expected {' or '.join(_COUNTS)} such as 2(x3),1, received {text!r}.")
        counts += [int(found[1])] * int(found[2] or 1)
    if len(counts) != nodes or sum(counts) != tasks:
        raise ValueError(
            f"expected {' or '.join(_COUNTS)} with {tasks} tasks on {nodes} nodes, received {text!r}, which are "
            f"{sum(counts)} tasks on {len(counts)} nodes."
        )
    distribution = re.split("[:,]", environment.get("SLURM_DISTRIBUTION", "block").lower())[0]
    if distribution in ("block", "", "*"):
        yield from ((node, local) for node, count in enumerate(counts) for local in range(count))
    elif distribution == "cyclic":
        yield from ((node, local) for local in range(max(counts)) for node, count in enumerate(counts) if local < count)
    else:
        raise ValueError(
            f"expected SLURM_DISTRIBUTION to be block or cyclic, received {environment['SLURM_DISTRIBUTION']!r}; "
            "start the tasks with srun --distribution=block."
        )


def _check_own_place(environment: Mapping[str, str], place: tuple[int, int]) -> None:
    # A wrong order of the tasks would be a wait for peers that never answer.
    for name, expected in zip(("SLURM_NODEID", "SLURM_LOCALID"), place, strict=True):
        if environment.get(name) and number_of(environment, name) != expected:
            raise ValueError(
                f"expected {name}={expected} for the task {environment['SLURM_PROCID']} of this step, received "
                f"{environment[name]}; start the tasks with srun --distribution=block."
            )
