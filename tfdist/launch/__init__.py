"""A local supervisor of distributed training: starts a cluster of processes on this machine and watches over it.

It imports no TensorFlow. `tfdist launch --help` describes the command; `launch` is the same as a function.

Example:
    >>> from tfdist.launch import LaunchSpec
    >>> LaunchSpec(command=("train.py",), workers=2, chief=True).cluster_ranks[0].label
    'chief 0'
"""

from tfdist.launch.cli import main
from tfdist.launch.command import CommandError
from tfdist.launch.report import RankExit
from tfdist.launch.spec import LaunchSpec, Rank
from tfdist.launch.supervisor import LaunchResult, launch

__all__ = ["CommandError", "LaunchResult", "LaunchSpec", "Rank", "RankExit", "launch", "main"]
