"""The schedulers that `tfdist render` knows."""

from __future__ import annotations

from typing import Any

from tfdist._suggestions import did_you_mean
from tfdist.render.job import Job
from tfdist.render.jobset import JOBSET
from tfdist.render.ray import RAY
from tfdist.render.sagemaker import SAGEMAKER
from tfdist.render.scheduler import Scheduler
from tfdist.render.slurm import SLURM
from tfdist.render.trainjob import TRAINJOB
from tfdist.render.vertex import VERTEX

SCHEDULERS: dict[str, Scheduler] = {
    "slurm": SLURM,
    "jobset": JOBSET,
    "trainjob": TRAINJOB,
    "sagemaker": SAGEMAKER,
    "vertex": VERTEX,
    "ray": RAY,
}
"""The schedulers, by the names that `tfdist render` has for them."""


def scheduler_named(name: str) -> Scheduler:
    """Returns a scheduler.

    Args:
        name: its name.

    Raises:
        ValueError: if there is no scheduler of this name.

    Example:
        >>> scheduler_named("slurm").title
        'Slurm'
    """
    if name not in SCHEDULERS:
        raise ValueError(
            f"expected one of the schedulers {', '.join(SCHEDULERS)}, received {name!r}; "
            f"{did_you_mean(name, SCHEDULERS)}run `tfdist render --help`."
        )
    return SCHEDULERS[name]


def render(scheduler: str, job: Job, **options: Any) -> str:
    """Returns the file that a person submits to start a job.

    Args:
        scheduler: name of the scheduler.
        job: the job.
        options: the options of this scheduler, which `tfdist render SCHEDULER --help` lists, with _ for each -.

    Raises:
        ValueError: if the scheduler does not allow a value.
        TypeError: if the scheduler does not have an option, or needs another one.

    Example:
        >>> text = render("jobset", Job(command=("python", "train.py"), nodes=4), image="example.com/train:1")
        >>> "completions: 4" in text
        True
    """
    return scheduler_named(scheduler).text(job, **options)
