"""The batch script of a Slurm job.

srun starts one task for each worker. Slurm sends SIGTERM to the tasks before the time is over. If they end with exit
code 75, the script asks Slurm to queue the job again.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.cluster.launched import ATTEMPT, LAUNCH_ID
from tfdist.render.job import GRACE_SECONDS, RESTARTS, Job
from tfdist.render.scheduler import Scheduler, check_name, check_words

_OPTIONS = {
    "--partition": {"metavar": "NAME", "help": "partition (queue) of the job"},
    "--account": {"metavar": "NAME", "help": "account that is charged"},
    "--constraint": {"metavar": "FEATURES", "help": "features that the nodes must have, such as a100"},
    "--setup": {
        "action": "append",
        "metavar": "LINE",
        "help": "line of the script before srun, such as 'module load cuda'; may be repeated",
    },
}


def script(
    job: Job,
    *,
    partition: str | None = None,
    account: str | None = None,
    constraint: str | None = None,
    setup: Sequence[str] = (),
) -> str:
    """Returns the batch script of a job.

    Args:
        job: the job.
        partition: partition of the job; None for the default one.
        account: account that is charged; None for the default one.
        constraint: features that the nodes must have.
        setup: lines of shell before srun.

    Raises:
        ValueError: if Slurm does not allow a value.

    Source:
        The man pages of sbatch, srun and scontrol.

    Example:
        >>> print(script(Job(command=("python", "train.py"), nodes=2)).splitlines()[3])
        #SBATCH --nodes=2
    """
    SLURM.check(job)
    check_name(job, r"[A-Za-z0-9][\w.-]*", title="Slurm", most=100, rule="letters, digits, _, . and -")
    check_words({"--partition": partition, "--account": account, "--constraint": constraint})
    grace = job.grace_seconds or GRACE_SECONDS
    if job.seconds and job.seconds <= grace:
        raise ValueError(
            f"expected --time above the {grace} s of --grace-seconds, received {job.seconds} s; SIGTERM would come "
            "first."
        )
    directives = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        f"--ntasks={job.workers}",
        f"--ntasks-per-node={job.tasks_per_node}",
        job.cpus and f"--cpus-per-task={job.cpus}",
        job.gpus and f"--gpus-per-task={job.gpus}",
        job.memory_gib and f"--mem={job.memory_gib * job.tasks_per_node}G",
        job.seconds and f"--time={_time(job.seconds)}",
        partition and f"--partition={partition}",
        account and f"--account={account}",
        constraint and f"--constraint={constraint}",
        "--output=%x-%j.log",
        # The output of a later start of the job follows that of the earlier ones.
        "--open-mode=append",
        "--requeue",
        # Without `B:` the signal goes to the tasks of srun, and not to the shell of the script.
        f"--signal=TERM@{grace}",
    ]
    lines = [
        "#!/usr/bin/env bash",
        f"# Made by: tfdist render slurm. Slurm sends SIGTERM {grace} s before the end of the time.",
        *(f"#SBATCH {directive}" for directive in directives if directive),
        "",
        *setup,
        *(f"export {name}={shlex.quote(value)}" for name, value in job.env.items()),
        "# Tasks of an earlier start of this job are told from those of this one.",
        f'export {LAUNCH_ID}="slurm-$SLURM_JOB_ID" {ATTEMPT}="${{SLURM_RESTART_COUNT:-0}}"',
        "",
        "# After the first task has ended, the others may go on: they write a snapshot or the model.",
        # With `||`, since a line of --setup may be `set -e`.
        "code=0",
        f"srun {_srun_options(job)} {shlex.join(job.command)} || code=$?",
        *_restart(job),
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _srun_options(job: Job) -> str:
    # srun does not take the CPUs of a task over from sbatch since Slurm 22.05.
    cpus = [f"--cpus-per-task={job.cpus}"] if job.cpus else []
    gpus = [f"--gpus-per-task={job.gpus}"] if job.gpus else []
    return " ".join(["--kill-on-bad-exit=0", "--wait=0", "--distribution=block", *cpus, *gpus])


def _restart(job: Job) -> list[str]:
    most = RESTARTS if job.max_restarts is None else job.max_restarts
    condition = '"$code" -ne 0' if job.restart_failures else f'"$code" -eq {RESTART_CODE}'
    return [
        f"# Exit code {RESTART_CODE}: the training has saved its state, and goes on when it is started again.",
        f'if [ {condition} ] && [ "${ATTEMPT}" -lt {most} ]; then',
        '  echo "exit code $code: job $SLURM_JOB_ID is queued again"',
        '  scontrol requeue "$SLURM_JOB_ID"',
        "fi",
    ]


def _time(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


SLURM = Scheduler(
    title="Slurm",
    help="a batch script for sbatch",
    suffix=".sbatch",
    options=_OPTIONS,
    refused={},
    text=script,
    submit=lambda file, job, options: f"sbatch {file}",
)
