"""Standby processes, which have TensorFlow imported and wait to become a task when all tasks start again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tfdist.cluster import Task
from tfdist.cluster.launched import ATTEMPT, PROGRESS_FILE
from tfdist.cluster.process_state import process_state
from tfdist.launch.guard import Guard
from tfdist.launch.messages import Messages

FIRST_STEP_SECONDS = 30.0
"""When standby processes start if no task has recorded a step until then."""

IMPORT_SECONDS = 120.0
"""How long a standby process may import before the next one starts beside it."""

MOST_STARTS = 3
"""How often a standby process is started for one task between two restarts, if it ends by itself."""

ORDERS = ("TF_CONFIG", ATTEMPT, PROGRESS_FILE)
"""The environment variables that a standby process gets when it becomes a task; it has all others from its start."""

_PROGRAM = Path(__file__).with_name("standby_program.py")
_END_SECONDS = 5.0


class Standby:
    """A process with TensorFlow imported, in a session of its own, that can become one task.

    Args:
        command: the command of the task: a Python file or `-m` and a module, and arguments.
        env: the environment variables of the task; those in ORDERS may change later.

    Attributes:
        process: the process.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._env = _without_orders(env)
        self._started = time.monotonic()
        self._ready = False
        orders, self._orders = os.pipe()
        self._readiness, ready = os.pipe()
        os.set_blocking(self._orders, False)
        os.set_blocking(self._readiness, False)
        try:
            # No function runs between fork and exec, since this process may have threads: the program itself asks the
            # kernel to be killed with the launcher.
            self.process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), str(orders), str(ready), str(os.getpid()), *command],
                env={**self._env, "TF_CONFIG": ""},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(orders, ready),
            )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(orders)
            os.close(ready)

    @property
    def ready(self) -> bool:
        """Whether the process has imported TensorFlow."""
        if not self._ready:
            with contextlib.suppress(BlockingIOError):
                # The pipe is also readable, and empty, after the end of the process.
                self._ready = os.read(self._readiness, 1) == b"r"
        return self._ready

    @property
    def busy(self) -> bool:
        """Whether the process still imports."""
        return not self.ready and not self.ended and time.monotonic() - self._started < IMPORT_SECONDS

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def fits(self, env: Mapping[str, str]) -> bool:
        """Returns whether the process was started with the environment variables of the task, but for its orders."""
        return _without_orders(env) == self._env

    def become(self, env: Mapping[str, str]) -> bool:
        """Makes the process the task with these environment variables, and returns whether that is possible."""
        # A process that still imports is not used: if it cannot import TensorFlow, the task would fail with it.
        # A process that is stopped, for example by SIGSTOP, would never begin its task.
        is_stopped = process_state(self.process.pid) in ("T", "t")
        if not self.ready or self.ended or is_stopped or not self.fits(env):
            return False
        orders = json.dumps({name: env[name] for name in ORDERS if name in env}).encode()
        try:
            complete = os.write(self._orders, orders) == len(orders)
        except OSError:
            return False
        if complete:
            self._close()
        return complete

    def kill(self) -> None:
        """Kills the process."""
        self._close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _close(self) -> None:
        os.close(self._orders)
        os.close(self._readiness)


class Standbys:
    """Keeps a standby process for each task, and replaces those that end. No standby process ever fails a run.

    Args:
        command: the command of the tasks.
        guard: ends the processes if the launcher is killed.
        messages: receives a line when a standby process ends by itself.
    """

    def __init__(self, command: Sequence[str], *, guard: Guard, messages: Messages) -> None:
        self._command = command
        self._guard = guard
        self._messages = messages
        self._standbys: dict[Task, Standby] = {}
        self._starts: dict[Task, int] = {}
        self._begun = time.monotonic()
        self._step_made = False

    @property
    def groups(self) -> set[int]:
        """The process groups of the standby processes."""
        return {standby.process.pid for standby in self._standbys.values()}

    def begin(self, envs: Mapping[Task, Mapping[str, str]]) -> None:
        """Notes that all tasks have started: standby processes start when the tasks have made a step.

        Args:
            envs: the environment variables of each task. Standby processes that cannot become one of them are ended.
        """
        for task, standby in list(self._standbys.items()):
            if task not in envs or not standby.fits(envs[task]):
                self._drop(task)
        self._starts.clear()
        self._begun = time.monotonic()
        self._step_made = False

    def tend(self, envs: Mapping[Task, Mapping[str, str]], step_made: Callable[[], bool]) -> None:
        """Starts the next standby process if it is time, one after the other so that the tasks lose little CPU time.

        Args:
            envs: the environment variables of each task.
            step_made: returns whether a task has completed a step since all tasks have started.
        """
        if not self._step_made and time.monotonic() - self._begun < FIRST_STEP_SECONDS and not step_made():
            return
        self._step_made = True
        for task, standby in list(self._standbys.items()):
            if standby.ended:
                self._messages.write(f"the standby process of {task.name} has ended by itself")
                self._drop(task)
        if any(standby.busy for standby in self._standbys.values()):
            return
        for task, env in envs.items():
            if task not in self._standbys and self._starts.get(task, 0) < MOST_STARTS:
                self._starts[task] = self._starts.get(task, 0) + 1
                # The system may have no resources for another process; the task then starts without.
                with contextlib.suppress(OSError):
                    self._standbys[task] = Standby(self._command, env)
                    self._guard.add(self._standbys[task].process.pid)
                return

    def take(self, task: Task, env: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """Returns the process that has become the task; None if there is none that can."""
        standby = self._standbys.get(task)
        if standby is None:
            return None
        if standby.become(env):
            del self._standbys[task]
            return standby.process
        self._drop(task)
        return None

    def close(self) -> None:
        """Kills all standby processes."""
        for task in list(self._standbys):
            self._drop(task)

    def _drop(self, task: Task) -> None:
        standby = self._standbys.pop(task)
        standby.kill()
        self._guard.remove(standby.process.pid)


def _without_orders(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in ORDERS}
