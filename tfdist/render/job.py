"""What a training needs, whichever scheduler starts it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from tfdist.cluster.environments import FORCED
from tfdist.cluster.environments.kubernetes import PODS, SUBDOMAIN
from tfdist.cluster.launched import ATTEMPT, LAUNCH_ID
from tfdist.cluster.tf_config import VARIABLE

RESTARTS = 100
"""How often a job is started again at most if nothing else is said; `tfdist launch` has the same default."""

GRACE_SECONDS = 60
"""Time between SIGTERM and the end. AutoResume needs 25 seconds, and Slurm counts in steps of a minute."""

WRITTEN = (VARIABLE, FORCED, PODS, SUBDOMAIN, LAUNCH_ID, ATTEMPT)
"""Environment variables that a rendered file sets itself, or that would contradict it."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COLONS = re.compile(r"(?:(?P<d>\d+)-)?(?P<h>\d+):(?P<m>[0-5]\d):(?P<s>[0-5]\d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A command line that a scheduler starts once for each worker.

    Args:
        command: the program and its arguments.
        name: name of the job; "" takes it from the program.
        nodes: number of machines, pods or instances.
        tasks_per_node: number of workers on each of them.
        cpus: CPUs of a worker; None leaves it to the scheduler.
        gpus: GPUs of a worker.
        memory_gib: memory of a worker in GiB; None leaves it to the scheduler.
        seconds: time limit; None leaves it to the scheduler.
        env: environment variables of the program.
        max_restarts: how often the job is started again at most; None is 100, or the fixed number of the scheduler.
        restart_failures: whether the job is also started again after failures, and not only after exit code 75.
        grace_seconds: time between SIGTERM and the end; None is 60, or the fixed time of the scheduler.

    Raises:
        ValueError: if a value has no meaning.

    Example:
        >>> Job(command=("python", "-m", "digits.train"), nodes=4).name
        'train'
    """

    command: tuple[str, ...]
    name: str = ""
    nodes: int = 1
    tasks_per_node: int = 1
    cpus: int | None = None
    gpus: int = 0
    memory_gib: int | None = None
    seconds: int | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    max_restarts: int | None = None
    restart_failures: bool = False
    grace_seconds: int | None = None

    def __post_init__(self) -> None:
        if not self.command or not all(isinstance(word, str) for word in self.command) or not self.command[0]:
            raise ValueError(
                "expected a command after --, received none; write for example "
                "`tfdist render slurm --nodes 4 -- python train.py`."
            )
        if any("\0" in word for word in (*self.command, *self.env.values())):
            raise ValueError("expected a command and variables without the character NUL, received one with it.")
        least = {"nodes": 1, "tasks_per_node": 1, "cpus": 1, "gpus": 0, "memory_gib": 1, "seconds": 1}
        for field, number in {**least, "max_restarts": 0, "grace_seconds": 1}.items():
            value = getattr(self, field)
            if value is not None and (type(value) is not int or value < number):
                raise ValueError(f"expected {option_of(field)} to be at least {number}, received {value!r}.")
        for variable in self.env:
            if not _VARIABLE.fullmatch(variable):
                raise ValueError(f"expected --env with a name of letters, digits and _, received {variable!r}.")
            if variable in WRITTEN:
                raise ValueError(
                    f"expected --env without variables that describe the cluster, received {variable}; the file and "
                    "the scheduler set them."
                )
        object.__setattr__(self, "command", tuple(self.command))
        object.__setattr__(self, "name", self.name or _name_of(self.command))

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.nodes * self.tasks_per_node


def option_of(field: str) -> str:
    """Returns the option of the command line that sets a field of a Job.

    Args:
        field: name of the field.

    Example:
        >>> option_of("tasks_per_node"), option_of("seconds")
        ('--tasks-per-node', '--time')
    """
    return {"seconds": "--time"}.get(field, f"--{field.replace('_', '-')}")


def seconds_in(text: str) -> int:
    """Returns the seconds in a duration.

    A number without a unit is refused: it would be minutes for Slurm, and seconds for the others.

    Args:
        text: hours, minutes and seconds, also with days, or a number with a unit.

    Raises:
        ValueError: if the text has another form.

    Example:
        >>> seconds_in("2:00:00"), seconds_in("1-00:00:30"), seconds_in("90m"), seconds_in("2d")
        (7200, 86430, 5400, 172800)
    """
    found = _COLONS.fullmatch(text)
    if found:
        return sum(int(found[unit] or 0) * _UNITS[unit] for unit in "dhms")
    if re.fullmatch(r"\d+[smhd]", text):
        return int(text[:-1]) * _UNITS[text[-1]]
    raise ValueError(f"expected a time such as 2:00:00, 1-12:00:00, 90m or 2h, received {text!r}.")


def _name_of(command: tuple[str, ...]) -> str:
    """Returns a name that every scheduler allows."""
    words = list(command)
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    script = next((word for word in words if word.endswith((".py", ".sh"))), words[0])
    stem = module.rpartition(".")[2] or script.rpartition("/")[2].rpartition(".")[0] or script.rpartition("/")[2]
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-0123456789")[:20].rstrip("-") or "training"
