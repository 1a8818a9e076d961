"""Starts the process of a task, which the kernel kills if the launcher ends."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from tfdist.launch.command import command_error

_PR_SET_PDEATHSIG = 1


def spawn(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own, whose output goes into a pipe.

    Call this function on the main thread: the kernel kills the process when the thread that created it ends.

    Args:
        argv: the words of the command.
        env: all environment variables of the process.

    Raises:
        CommandError: if the command cannot be executed.
        OSError: if the system has no resources for another process.
    """
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent(),
        )
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC):
            raise command_error(argv[0], error.errno) from None
        raise


def _die_with_parent() -> Callable[[], None] | None:
    """Returns a function for the child to call between fork and exec; the end of this thread then kills the child."""
    if not sys.platform.startswith("linux"):
        return None
    # All names are looked up before the fork, because the child must not import a module or take a lock.
    prctl, getppid, exit_now, parent = ctypes.CDLL(None).prctl, os.getppid, os._exit, os.getpid()

    def request_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have ended before the call of prctl.
        if getppid() != parent:
            exit_now(1)

    return request_signal
