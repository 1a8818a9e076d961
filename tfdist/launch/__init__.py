"""A local supervisor of distributed training: starts a cluster of processes on this machine and watches over it.

This package imports no TensorFlow. `tfdist launch --help` describes the command; the function `launch` does the same.

Example:
    >>> from tfdist.launch import LaunchSpec
    >>> [task.name for task in LaunchSpec(command=("train.py",), workers=2, chief=True).tasks]
    ['chief 0', 'worker 0', 'worker 1']
"""

from tfdist.cluster import Task
from tfdist.launch.cli import main
from tfdist.launch.command import CommandError
from tfdist.launch.result import LaunchResult, Restart, TaskExit
from tfdist.launch.scale import Elastic
from tfdist.launch.spec import LaunchSpec
from tfdist.launch.supervisor import launch

__all__ = ["CommandError", "Elastic", "LaunchResult", "LaunchSpec", "Restart", "Task", "TaskExit", "launch", "main"]
