"""The ranks that mpiexec or mpirun starts: Open MPI, MPICH, Intel MPI and others with the same variables.

They know their rank and number, but no hosts, so that they exchange their addresses once, at rank 0. Where rank 0 is
follows from TFDIST_COORDINATOR; else, if all ranks are on this machine, it is this machine; else MPICH and Intel MPI
tell it by their key-value store (PMI_FD), and for Open MPI, it is looked for on the host of mpirun and on the hosts of
the allocation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfdist.cluster.address import split_address
from tfdist.cluster.environments.hostlist import hosts_of
from tfdist.cluster.environments.variables import number_of, text_of
from tfdist.cluster.meeting import COORDINATOR, Meeting, ports_of
from tfdist.cluster.tf_config import SINGLE_PROCESS, Fields

_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
# The last one is a random number. Open MPI 5 and later ones set the first one only.
_RUN = ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_orte_precondition_transports")
_ADVICE = {
    True: f"add -x {COORDINATOR}=HOST:PORT to mpirun, with the host of rank 0 and a free port",
    False: f"add -genv {COORDINATOR} HOST:PORT to mpiexec, with the host of rank 0 and a free port",
}


def is_here(environment: Mapping[str, str]) -> bool:
    """Returns whether mpiexec or mpirun started this process; srun of Slurm did not.

    Args:
        environment: the environment variables.

    Example:
        >>> is_here({"OMPI_COMM_WORLD_RANK": "0"}), is_here({"PMI_RANK": "0", "SLURM_PROCID": "0"})
        (True, False)
    """
    if environment.get("OMPI_COMM_WORLD_RANK") or (environment.get("PMIX_RANK") and environment.get("PRTE_LAUNCHED")):
        return True
    # `srun --mpi=pmi2` sets PMI_RANK as well. mpiexec within a job of Slurm passes on the variables of its daemons.
    started_by_slurm = environment.get("SLURM_PROCID") and not environment.get("MPI_LOCALRANKID")
    return bool(environment.get("PMI_RANK") and not started_by_slurm)


def read(environment: Mapping[str, str]) -> Meeting | Fields:
    """Returns where the ranks meet; a single rank is a single process.

    Args:
        environment: the environment variables.

    Raises:
        ValueError: if a variable is missing or contradicts another one, or if nothing tells where rank 0 is; the
            message names the variable.

    Source:
        "Environment variables set for MPI applications" in the documentation of Open MPI; "13/Simple Process Manager
        Interface v1" of the Flux project.

    Example:
        >>> found = read({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        ...               "PMIX_NAMESPACE": "prterun-node1-4711@1"})
        >>> found.name, found.hosts, found.run_id
        ('rank 1 of 2', ('node1',), 'prterun-node1-4711@1')
    """
    if not any(environment.get(name) for name in _SIZE) and environment.get("PMIX_RANK"):
        raise ValueError(
            f"expected the environment variable {' or '.join(_SIZE)} beside PMIX_RANK, received none of them; start "
            "the program with mpirun, or with prterun --personality ompi."
        )
    size = number_of(environment, *_SIZE)
    rank = number_of(environment, *_RANK, below=max(size, 1))
    if size <= 1:
        return SINGLE_PROCESS
    advice = _ADVICE["OMPI_COMM_WORLD_RANK" in environment]
    run_id = " ".join(filter(None, (environment.get(name) for name in _RUN)))
    if environment.get(COORDINATOR, "").strip():
        return at_coordinator(environment, rank=rank, size=size, run_id=run_id, advice=advice)
    pmi = number_of(environment, "PMI_FD") if environment.get("PMI_FD") and not run_id else None
    is_local = any(environment.get(name) for name in _LOCAL_SIZE) and number_of(environment, *_LOCAL_SIZE) == size
    named_by = next((name for name in _LOCAL_SIZE if environment.get(name)), "")
    hosts: tuple[str, ...] = ("127.0.0.1",)
    if not is_local:
        named_by, hosts = _hosts(environment) if pmi is None else ("", ())
    if pmi is None and not (run_id and hosts):
        raise ValueError(
            f"expected a variable of the MPI launcher that tells rank {rank} of {size} where rank 0 is, received none; "
            f"{advice}."
        )
    # With a descriptor, the run id comes from the launcher, and the ports from the run id.
    ports = ports_of(run_id) if run_id else ()
    return Meeting(
        rank=rank, size=size, run_id=run_id, hosts=hosts, ports=ports, named_by=named_by, advice=advice, pmi=pmi
    )


def at_coordinator(environment: Mapping[str, str], *, rank: int, size: int, run_id: str, advice: str) -> Meeting:
    """Returns a meeting at the address in TFDIST_COORDINATOR.

    Args:
        environment: the environment variables.
        rank: the rank of this process.
        size: the number of ranks.
        run_id: a text that the ranks of this run share, or "".
        advice: how the user names the host of rank 0.

    Raises:
        ValueError: if the variable is no address.

    Example:
        >>> at_coordinator({"TFDIST_COORDINATOR": "node1:2222"}, rank=0, size=2, run_id="", advice="").hosts
        ('node1',)
    """
    address = text_of(environment, COORDINATOR)
    host, port = split_address(address, field=COORDINATOR)
    return Meeting(
        rank=rank,
        size=size,
        run_id=run_id or address,
        hosts=(host,),
        ports=(port,),
        named_by=COORDINATOR,
        advice=advice,
    )


def _hosts(environment: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Returns where rank 0 of Open MPI may be, and the variables that say so."""
    found: dict[str, tuple[str, ...]] = {}
    uris = re.findall(r"tcp6?://([^;]+):\d+", environment.get("OMPI_MCA_orte_hnp_uri", ""))
    if uris:
        found["OMPI_MCA_orte_hnp_uri"] = tuple(part.strip("[]") for uri in uris for part in uri.split(","))
    daemon = re.fullmatch(r"(?:prterun|prte|mpirun|mpiexec)-(.+)-\d+@\d+", environment.get("PMIX_NAMESPACE", ""))
    if daemon:
        found["PMIX_NAMESPACE"] = (daemon[1],)
    if environment.get("SLURM_JOB_NODELIST"):
        found["SLURM_JOB_NODELIST"] = hosts_of(environment["SLURM_JOB_NODELIST"])
    if environment.get("LSB_MCPU_HOSTS"):
        found["LSB_MCPU_HOSTS"] = tuple(environment["LSB_MCPU_HOSTS"].split()[::2])
    hosts = dict.fromkeys(host for hosts in found.values() for host in hosts)
    return " and ".join(found), tuple(hosts)
