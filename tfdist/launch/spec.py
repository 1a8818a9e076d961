"""What a job is made of: its ranks and the options of `tfdist launch`, as plain values."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

OWN_VARIABLES = ("TF_CONFIG", "TFDIST_LAUNCH_ID")
"""Variables that the launcher writes itself, one value per rank or per job."""


@dataclass(frozen=True, order=True)
class Rank:
    """One process of the job, named as in TF_CONFIG.

    Args:
        role: "chief", "worker", "ps" or "evaluator".
        index: Its number among the ranks of that role, from 0.
    """

    role: str
    index: int

    @property
    def label(self) -> str:
        """The name that is printed, for example "worker 0"."""
        return f"{self.role} {self.index}"

    @property
    def log_name(self) -> str:
        """The name of its log file, for example "worker-0.log"."""
        return f"{self.role}-{self.index}.log"


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """Everything that `launch` needs to know.

    Args:
        command: The program and its arguments, the same for every rank. A first word `-m` or `*.py` is run with this
            Python.
        workers: How many workers, from 0.
        ps: How many parameter servers, from 0; with any, a chief is added if there is none, since it coordinates.
        chief: Whether there is a chief.
        evaluator: Whether there is an evaluator; it is no part of the cluster.
        host: A name or address of this machine, which the ranks use to reach each other.
        port_base: The first of consecutive ports; None takes free ones.
        log_dir: Where the log files go; None makes a new directory below `tfdist-logs`.
        grace_seconds: How long a rank may take to end after it was told to, before it is killed.
        evaluator_grace_seconds: How long the evaluator may go on after everyone else has ended.
        timeout_seconds: How long the whole job may take; None for ever.
        threads_per_rank: CPU threads of each rank that computes; None divides the CPUs, 0 changes nothing.
        show_info: Whether to show TensorFlow's own information lines; the log files always have them.
        env: Environment variables added to those of this process.

    Raises:
        ValueError: If these values make no job.

    Example:
        >>> LaunchSpec(command=("train.py",), workers=2).ranks
        (Rank(role='worker', index=0), Rank(role='worker', index=1))
    """

    command: tuple[str, ...]
    workers: int = 1
    ps: int = 0
    chief: bool = False
    evaluator: bool = False
    host: str = "localhost"
    port_base: int | None = None
    log_dir: Path | None = None
    grace_seconds: float = 5.0
    evaluator_grace_seconds: float = 60.0
    timeout_seconds: float | None = None
    threads_per_rank: int | None = None
    show_info: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.command or not self.command[0] or tuple(self.command) == ("-m",):
            raise ValueError(
                "expected a command to run, received none; write it after `--`, as in "
                "`tfdist launch --workers 2 -- python train.py`."
            )
        _check_count("--workers", self.workers)
        _check_count("--ps", self.ps)
        if self.threads_per_rank is not None:
            _check_count("--threads-per-rank", self.threads_per_rank)
        if not (self.workers or self.ps or self.chief or self.evaluator):
            raise ValueError("expected at least one rank, received none; ask for --workers, --chief or --evaluator.")
        if self.ps and not self.workers:
            raise ValueError(
                f"expected at least 1 worker with --ps, received --ps {self.ps} and no workers; add --workers 1."
            )
        _check_seconds("--grace-seconds", self.grace_seconds)
        _check_seconds("--evaluator-grace-seconds", self.evaluator_grace_seconds)
        if self.timeout_seconds is not None:
            _check_seconds("--timeout-seconds", self.timeout_seconds, positive=True)
        last = (self.port_base or 1) + len(self.cluster_ranks) - 1
        if self.port_base is not None and not 1 <= self.port_base <= last <= 65535:
            raise ValueError(
                f"expected --port-base to leave every rank a port out of 1 to 65535, received {self.port_base} "
                f"for {len(self.cluster_ranks)} ranks; choose another one."
            )
        for name in OWN_VARIABLES:
            if name in self.env:
                raise ValueError(f"expected --env without {name}, received it; the launcher writes it, leave it out.")

    @property
    def adds_chief(self) -> bool:
        """Whether a chief is added because parameter servers need one."""
        return self.ps > 0 and not self.chief

    @property
    def cluster_ranks(self) -> tuple[Rank, ...]:
        """The ranks that TF_CONFIG's cluster names, chief first."""
        counts = {"chief": int(self.chief or self.adds_chief), "worker": self.workers, "ps": self.ps}
        return tuple(Rank(role, index) for role, count in counts.items() for index in range(count))

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks, in the order in which they are started."""
        return self.cluster_ranks + ((Rank("evaluator", 0),) if self.evaluator else ())

    @property
    def argv(self) -> list[str]:
        """The command as it is executed."""
        first = self.command[0]
        by_this_python = first == "-m" or first.endswith(".py")
        return [*([sys.executable] if by_this_python else []), *self.command]


def _check_count(name: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"expected {name} to be 0 or more, received {value}; give a number of ranks or threads.")


def _check_seconds(name: str, value: float, *, positive: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        bound = "more than 0" if positive else "0 or more"
        raise ValueError(f"expected {name} to be {bound}, received {value:g}; give a finite number of seconds.")
