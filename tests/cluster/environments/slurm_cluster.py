"""A Slurm cluster of several nodes on this machine, for tests: one slurmctld and one slurmd for each node.

It needs root and the Debian packages slurmctld, slurmd, slurm-client and munge. The daemons run in a mount namespace of
their own, in which /etc/hosts names the nodes, and end with it.
"""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from tests.processes import Finished, run

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "unshare")
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 CoresPerSocket=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:8 State=UP
"""
# The namespace of processes ends, with all daemons, when its first process ends.
_SCRIPT = """
set -euo pipefail
mount --bind "{folder}/hosts" /etc/hosts
(umask 077; mkdir -p "{folder}/munge"; head -c 1024 /dev/urandom > "{folder}/munge/key")
munged --foreground --force --socket="{folder}/munge/socket" --key-file="{folder}/munge/key" \
  --pid-file="{folder}/munge/pid" --log-file="{folder}/munge/log" --seed-file="{folder}/munge/seed" &
until [ -S "{folder}/munge/socket" ]; do sleep 0.05; done
export SLURM_CONF="{folder}/slurm.conf"
slurmctld -c
for node in {names}; do slurmd -c -N "$node"; done
until [ "$(sinfo -h -t idle -o %D)" = {count} ]; do sleep 0.1; done
{command}
"""


def missing() -> str:
    """Returns what keeps a cluster from being started here; "" if nothing does."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{', '.join(absent)} are not installed" if absent else "" if os.geteuid() == 0 else "root is needed"


def srun(
    command: str, *, nodes: str, names: list[str], ports: list[int], folder: Path, deadline_seconds: float
) -> Finished:
    """Runs a command line with srun in a new cluster, which ends with it.

    Args:
        command: the command line, which begins with srun.
        nodes: the nodes in Slurm's notation.
        names: the nodes.
        ports: a port for slurmctld, and as many consecutive ones for slurmd as there are nodes.
        folder: an empty folder.
        deadline_seconds: time limit.
    """
    folder.chmod(0o755)
    for name in ("state", *(f"spool-{node}" for node in names)):
        (folder / name).mkdir()
    (folder / "hosts").write_text(
        "".join(f"127.0.0.1 {name}\n" for name in ("localhost", socket.gethostname(), *names))
    )
    conf = _CONF.format(
        host=socket.gethostname().split(".")[0],
        folder=folder,
        nodes=nodes,
        port=ports[0],
        first=ports[1],
        last=ports[1] + len(names) - 1,
    )
    (folder / "slurm.conf").write_text(conf)
    script = _SCRIPT.format(folder=folder, names=" ".join(names), count=len(names), command=command)
    ended = run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script],
        cwd=folder,
        deadline_seconds=deadline_seconds,
    )
    for log in sorted(folder.glob("*.log")):
        print(f"---- {log.name}\n{log.read_text()[-2000:]}")
    return ended
