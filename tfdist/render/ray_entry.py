"""What the program of `tfdist render ray` does on Ray: runs a command as the train function of Ray Train.

Ray starts all workers again after an exception of a train function, as often as its FailureConfig allows. Exit code 75
becomes an exception. Ray does not tell exceptions apart; after another failure, therefore, the worker records the exit
code, and no worker starts the command any more.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tfdist.cluster.exit_codes import RESTART_CODE

_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1


class CommandEnded(RuntimeError):
    """Raised on a worker of Ray whose command ended with an exit code after which it is started again.

    Args:
        code: the exit code.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"the command ended with exit code {code} and is started again")
        self.code = code

    def __reduce__(self) -> tuple[type[CommandEnded], tuple[int]]:
        return type(self), (self.code,)


def first_failure() -> Any:
    """Returns an actor of Ray that remembers the exit code of the first command that failed."""
    import ray

    class FirstFailure:
        def __init__(self) -> None:
            self._code = 0

        def record(self, code: int) -> None:
            self._code = self._code or code

        def code(self) -> int:
            return self._code

    return ray.remote(num_cpus=0)(FirstFailure).remote()


def run_command(config: Mapping[str, Any]) -> None:
    """Runs the command on a worker; it is the train function of the trainer.

    Args:
        config: `command`, `env`, `restart_failures`, and `failure`, which `first_failure` has returned.

    Raises:
        CommandEnded: if the command is to be started again.
    """
    import ray

    failure = config["failure"]
    if ray.get(failure.code.remote(), timeout=_SECONDS):
        return
    code = _exit_code(config["command"], {**os.environ, **config["env"]})
    if code == RESTART_CODE or (code and config["restart_failures"]):
        raise CommandEnded(code)
    if code:
        ray.get(failure.record.remote(code), timeout=_SECONDS)


def run_and_exit_code(trainer: Any) -> int:
    """Runs a training whose train function is `run_command`, and returns the exit code for the job.

    Args:
        trainer: the trainer.
    """
    import ray
    from ray.train import TrainingFailedError

    try:
        trainer.fit()
    except TrainingFailedError as error:
        print(f"tfdist: Ray has started the workers as often as --max-restarts allows: {error}", file=sys.stderr)
        return 1
    return int(ray.get(trainer.train_loop_config["failure"].code.remote(), timeout=_SECONDS))


def _exit_code(command: list[str], environment: Mapping[str, str]) -> int:
    process = subprocess.Popen(command, env=environment, preexec_fn=_end_with_parent)
    code = process.wait()
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    # Ray kills the worker, before it starts all of them again; its command must not go on beside the new one.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
