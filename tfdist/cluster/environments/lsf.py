"""The cluster of an LSF job, whose tasks jsrun or blaunch starts.

jsrun tells a task its rank and number. Which host has which rank depends on its resource sets, so that the tasks
exchange their addresses at rank 0, which is looked for on the hosts of the job. blaunch numbers its tasks as the slots
of the job, and does not tell whether it was asked for all of them: TFDIST_ENVIRONMENT=lsf says that it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfdist.cluster.environments.mpi import at_coordinator
from tfdist.cluster.environments.variables import number_of, text_of
from tfdist.cluster.meeting import COORDINATOR, Meeting, ports_of
from tfdist.cluster.tf_config import SINGLE_PROCESS, Fields

_LISTS = ("LSB_MCPU_HOSTS", "LSB_HOSTS", "LSB_DJOB_HOSTFILE")
_ADVICE = f"set {COORDINATOR}=HOST:PORT, with the host of rank 0 and a free port, before jsrun"
_FIRST_PORT, _PORTS, _PORTS_OF_A_JOB = 12000, 20000, 100


def is_here(environment: Mapping[str, str]) -> bool:
    """Returns whether jsrun started this process.

    Args:
        environment: the environment variables.

    Example:
        >>> is_here({"JSM_NAMESPACE_RANK": "0"}), is_here({"LSB_JOBID": "7"})
        (True, False)
    """
    return bool(environment.get("JSM_NAMESPACE_RANK"))


def read(environment: Mapping[str, str]) -> Meeting | Fields:
    """Returns where the tasks of jsrun meet, or the cluster of the tasks of blaunch: one worker for each task.

    Args:
        environment: the environment variables.

    Raises:
        ValueError: if a variable is missing or contradicts another one; the message names it.

    Source:
        "Environment variable reference" and "blaunch" in the documentation of IBM Spectrum LSF; LSFEnvironment of
        Lightning for the variables of jsrun.

    Example:
        >>> found = read({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "batch1 1 a1 42 a2 42", "JSM_NAMESPACE_RANK": "1",
        ...               "JSM_NAMESPACE_SIZE": "2"})
        >>> found.name, found.hosts
        ('rank 1 of 2', ('a1', 'a2', 'batch1'))
        >>> read({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a1 2 a2 1", "LSF_PM_TASKID": "3"}).jobs
        {'worker': ('a1:12700', 'a1:12701', 'a2:12700')}
    """
    if not environment.get("JSM_NAMESPACE_RANK"):
        return _of_blaunch(environment)
    size = number_of(environment, "JSM_NAMESPACE_SIZE")
    rank = number_of(environment, "JSM_NAMESPACE_RANK", below=max(size, 1))
    if size <= 1:
        return SINGLE_PROCESS
    # Several jsrun of one job may run at the same time.
    run_id = f"LSF {text_of(environment, 'LSB_JOBID')} {environment.get('PMIX_NAMESPACE', '')}".strip()
    if environment.get(COORDINATOR, "").strip():
        return at_coordinator(environment, rank=rank, size=size, run_id=run_id, advice=_ADVICE)
    named_by, slots = _slots(environment)
    # The first host is usually the one that runs the script of the job, and no task.
    hosts = tuple(dict.fromkeys(slots))
    return Meeting(
        rank=rank,
        size=size,
        run_id=run_id,
        hosts=(*hosts[1:], hosts[0]),
        ports=ports_of(run_id),
        named_by=named_by,
        advice=_ADVICE,
    )


def _of_blaunch(environment: Mapping[str, str]) -> Fields:
    task = number_of(environment, "LSF_PM_TASKID")
    named_by, slots = _slots(environment)
    if not 1 <= task <= len(slots):
        raise ValueError(
            f"expected LSF_PM_TASKID to be from 1 to the {len(slots)} slots of {named_by}, received {task}; start the "
            "program with jsrun, or with blaunch without names of hosts."
        )
    if len(slots) == 1:
        return SINGLE_PROCESS
    first = _FIRST_PORT + number_of(environment, "LSB_JOBID") * _PORTS_OF_A_JOB % _PORTS
    addresses = tuple(f"{host}:{first + slots[:slot].count(host)}" for slot, host in enumerate(slots))
    return Fields({"worker": addresses}, {}, "worker", task - 1)


def _slots(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Returns the variable that lists the hosts of the job, and the host of each of its slots."""
    text = text_of(environment, *_LISTS)
    name = next(name for name in _LISTS if environment.get(name, "").strip())
    if name == "LSB_DJOB_HOSTFILE":
        try:
            text = Path(text).read_text()
        except (OSError, UnicodeError):
            raise ValueError(f"expected LSB_DJOB_HOSTFILE to be a file with hosts, received {text!r}.") from None
    words = text.split()
    if name == "LSB_MCPU_HOSTS":
        counts = words[1::2]
        if len(words) % 2 or not all(count.isdigit() and 0 < int(count) < 65536 for count in counts):
            raise ValueError(f"expected LSB_MCPU_HOSTS such as 'host1 2 host2 2', received {text!r}.")
        words = [host for host, count in zip(words[::2], counts, strict=True) for _ in range(int(count))]
    if not words:
        raise ValueError(f"expected at least one host in {name}, received none.")
    return name, words
