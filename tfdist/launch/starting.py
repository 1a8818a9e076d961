"""Starts the processes of all tasks of one incarnation."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping

from tfdist.cluster import Task
from tfdist.launch import report
from tfdist.launch.environment import available_cores, task_env, thread_share
from tfdist.launch.log_files import log_name, progress_name
from tfdist.launch.process import TaskProcess
from tfdist.launch.run import Run
from tfdist.launch.spawn import spawn
from tfdist.launch.spec import LaunchSpec


def start_tasks(
    spec: LaunchSpec, run: Run, processes: dict[Task, TaskProcess], *, attempt: int, ports: Mapping[Task, int]
) -> dict[Task, dict[str, str]]:
    """Starts the processes of all tasks, and returns their environment variables.

    If a process cannot be started, those before it are in `processes` all the same.

    Args:
        spec: the tasks.
        run: what all incarnations share.
        processes: receives the process of each task.
        attempt: how often the tasks had been restarted before.
        ports: the port of each task of the cluster.

    Raises:
        CommandError: if the command cannot be executed.
        OSError: if the system has no resources for more processes, or a log file cannot be written.
    """
    envs: dict[Task, dict[str, str]] = {}
    share = thread_share(spec.tasks, cores=available_cores(), requested=spec.threads_per_task)
    run.messages.write(report.header(spec.tasks, ports, host=spec.host, share=share, log_dir=run.log_dir))
    from_standbys = []
    for task in spec.tasks:
        progress = run.log_dir.absolute() / progress_name(task)
        # The records of the attempt before would pass for progress of this one.
        progress.unlink(missing_ok=True)
        env = task_env(
            task,
            spec,
            ports=ports,
            share=share,
            launch_id=run.launch_id,
            base=os.environ,
            attempt=attempt,
            progress_file=progress,
            is_live=run.console.is_live,
        )
        envs[task] = env
        standby = run.standbys.take(task, env) if run.standbys else None
        start = functools.partial(spawn, spec.argv, env) if standby is None else functools.partial(_same, standby)
        processes[task] = TaskProcess(task, start, log=run.log_dir / log_name(task, attempt))
        run.guard.add(processes[task].group)
        if standby is not None:
            from_standbys.append(task)
    if from_standbys:
        run.messages.write(f"standby processes become {report.names(from_standbys)}")
    run.console.begin([task.name for task in spec.tasks])
    for process in processes.values():
        process.watch(run.console, run.on_exit)
    if run.standbys:
        run.standbys.begin(envs)
    return envs


def _same(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    return process
