"""The Python program of a Ray job: Ray Train starts the command on each worker, and again after exit code 75."""

from __future__ import annotations

from typing import Any

from tfdist.render.job import RESTARTS, Job
from tfdist.render.scheduler import Scheduler, check_name

_OPTIONS: dict[str, dict[str, Any]] = {
    "--storage": {
        "metavar": "PATH",
        "help": "where Ray keeps what it knows of the training (default: Ray's own place)",
    },
}
_GIB = 2**30
_TEXT = '''"""Made by: tfdist render ray. After exit code 75, a command has saved its state, and Ray starts it again."""

import sys

from ray.train import FailureConfig, RunConfig, ScalingConfig

from tfdist.ray import TfdistTrainer
from tfdist.render.ray_entry import first_failure, run_and_exit_code, run_command

trainer = TfdistTrainer(
    run_command,
    train_loop_config={{
        "command": {command},
        "env": {env},
        "restart_failures": {restart_failures},
        "failure": first_failure(),
    }},
    scaling_config=ScalingConfig({scaling}),
    run_config=RunConfig({run}),
)
sys.exit(run_and_exit_code(trainer))
'''


def program(job: Job, *, storage: str | None = None) -> str:
    """Returns the program of a job.

    Args:
        job: the job.
        storage: where Ray keeps what it knows of the training, such as a shared directory.

    Raises:
        ValueError: if Ray does not allow a value.

    Source:
        "Ray Train API" and "Ray Jobs CLI API Reference" in the documentation of Ray.

    Example:
        >>> text = program(Job(command=("python", "train.py"), nodes=4))
        >>> "num_workers=4" in text, "max_failures=100" in text
        (True, True)
    """
    RAY.check(job)
    check_name(job, r"[A-Za-z0-9][\w.-]*", title="Ray", most=100, rule="letters, digits, _, . and -")
    resources: dict[str, int] = {}
    if job.cpus:
        resources["CPU"] = job.cpus
    if job.gpus:
        resources["GPU"] = job.gpus
    if job.memory_gib:
        resources["memory"] = job.memory_gib * _GIB
    scaling = {"num_workers": job.nodes, "use_gpu": bool(job.gpus), "placement_strategy": "SPREAD"}
    most = RESTARTS if job.max_restarts is None else job.max_restarts
    return _TEXT.format(
        command=repr(list(job.command)),
        env=repr(dict(job.env)),
        restart_failures=job.restart_failures,
        scaling=_arguments({**scaling, **({"resources_per_worker": resources} if resources else {})}),
        run=", ".join(
            [
                _arguments({"name": job.name, **({"storage_path": storage} if storage else {})}),
                f"failure_config=FailureConfig(max_failures={most})",
            ]
        ),
    )


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


RAY = Scheduler(
    title="Ray",
    help="a Python program for `ray job submit`",
    suffix="-ray.py",
    options=_OPTIONS,
    refused={
        "tasks_per_node": "Ray chooses the nodes, so give the number of workers as --nodes",
        "seconds": "Ray has no time limit for jobs",
        "grace_seconds": "Ray ends workers at once",
    },
    text=program,
    submit=lambda file, job, options: f"ray job submit --working-dir . -- python {file}",
)
