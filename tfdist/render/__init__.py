"""Files that a person submits to a scheduler: Slurm, JobSet, Kubeflow Trainer, SageMaker, Vertex AI and Ray.

This package imports no TensorFlow and submits nothing. `tfdist render --help` describes the command; the function
`render` does the same.

Example:
    >>> from tfdist.render import Job, render
    >>> print(render("slurm", Job(command=("python", "train.py"), nodes=4)).splitlines()[0])
    #!/usr/bin/env bash
"""

from tfdist.render.cli import main
from tfdist.render.job import Job
from tfdist.render.schedulers import SCHEDULERS, render

__all__ = ["SCHEDULERS", "Job", "main", "render"]
