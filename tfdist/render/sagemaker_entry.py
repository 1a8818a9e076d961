"""The first program of a container of SageMaker: runs a command, and runs it again after exit code 75.

It also sets the variables that name the hosts, which only some images of SageMaker do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.cluster.launched import ATTEMPT, LAUNCH_ID

RESOURCE_CONFIG = Path("/opt/ml/input/config/resourceconfig.json")
"""The file in which SageMaker names the hosts of a training job."""


def hosts(document: Mapping[str, Any]) -> dict[str, str]:
    """Returns the variables that name the hosts.

    Args:
        document: the content of resourceconfig.json.

    Raises:
        ValueError: if the document does not name the hosts.

    Source:
        "Distributed Training Configuration" in the documentation of Amazon SageMaker.

    Example:
        >>> hosts({"current_host": "algo-1", "hosts": ["algo-1", "algo-2"]})
        {'SM_HOSTS': '["algo-1", "algo-2"]', 'SM_CURRENT_HOST': 'algo-1'}
    """
    try:
        return {"SM_HOSTS": json.dumps(document["hosts"]), "SM_CURRENT_HOST": str(document["current_host"])}
    except (KeyError, TypeError):
        raise ValueError(
            f"expected hosts and current_host in {RESOURCE_CONFIG}, received {document!r}; run this program in a "
            "container of SageMaker."
        ) from None


def main(argv: Sequence[str] | None = None, *, resource_config: Path = RESOURCE_CONFIG) -> int:
    """Runs a command until it ends with another exit code than 75, and returns that code.

    SIGTERM, with which SageMaker interrupts or stops a job, is passed on to the command, which is not started again.

    Args:
        argv: options, `--` and the command; None takes the arguments of this process.
        resource_config: file that names the hosts.

    Raises:
        ValueError: if the file does not name the hosts.
    """
    parser = argparse.ArgumentParser(prog="python -m tfdist.render.sagemaker_entry")
    parser.add_argument("--max-restarts", type=int, required=True)
    parser.add_argument("--restart-failures", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    name = os.environ.get("TRAINING_JOB_NAME", "sagemaker")
    environment = {**os.environ, **hosts(json.loads(resource_config.read_text())), LAUNCH_ID: name}
    passing = _PassingOn()
    signal.signal(signal.SIGTERM, passing)
    for attempt in range(options.max_restarts + 1):
        code = passing.run(options.command, {**environment, ATTEMPT: str(attempt)})
        again = code == RESTART_CODE or (options.restart_failures and code != 0)
        if passing.stopped or not again or attempt == options.max_restarts:
            break
        print(f"tfdist: the command ended with exit code {code} and is started again", file=sys.stderr, flush=True)
    return code


class _PassingOn:
    """Passes SIGTERM on to the command that runs."""

    def __init__(self) -> None:
        self.stopped = False
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        if self._process is not None:
            self._process.send_signal(number)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Runs the command and returns its exit code, which is 128 + number after a signal."""
        self._process = subprocess.Popen(command, env=environment)
        if self.stopped:  # The signal came before there was a process.
            self._process.terminate()
        code = self._process.wait()
        return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
