"""`python -m tests.warm.launch ARGS...` is `tfdist launch` with warm tasks, for tests of what tasks compute.

Tests of the launcher itself, and of tasks that have to end with it, start `python -m tfdist launch`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.warm.client import WarmPopen
from tfdist import _cli
from tfdist.launch import starting


def spawn(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a task as tfdist.launch.spawn does, but warm."""
    return WarmPopen(
        list(argv),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def use_warm_tasks() -> None:
    """Makes the launcher of this process start warm tasks."""
    starting.spawn = spawn
    # The launcher calls waitid, where a system has it, which knows only the children of this process.
    del os.waitid


if __name__ == "__main__":
    use_warm_tasks()
    sys.exit(_cli.main(["launch", *sys.argv[1:]]))
