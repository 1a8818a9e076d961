"""One task of `tfdist test`: starts the processes of this task one after the other, and reports how the checks end.

The task itself imports no TensorFlow, so that it outlives every process that the test kills.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from tfdist.cluster import ClusterConfig
from tfdist.cluster.environments import FORCED
from tfdist.cluster.launched import ATTEMPT, LAUNCH_ID, PROGRESS_FILE, launched
from tfdist.test import checks
from tfdist.test.checks import Outcome, completed, first_without_outcome
from tfdist.test.process import Ended, run
from tfdist.test.reason import why
from tfdist.test.report import Report
from tfdist.test.worker import record_of
from tfdist.verify.runner import last_lines

# After the last worker was killed, so long the other workers may take to notice it.
_SECONDS_TO_NOTICE = 60.0
_SHOWN_LINES = 12


class Task:
    """Runs the checks of one task.

    Args:
        config: the cluster, which has workers only.
        where: how many workers there are, and what describes or started them.
        timeout_seconds: time limit for everything.
        say: takes a line about what is running.
    """

    def __init__(
        self, config: ClusterConfig, *, where: str, timeout_seconds: float, say: Callable[[str], None]
    ) -> None:
        self._config, self._where, self._say = config, where, say
        self._begun = time.monotonic()
        self._timeout_seconds = timeout_seconds
        self._deadline = self._begun + timeout_seconds
        self._outcomes: list[Outcome] = []
        self._output = ""
        self._folder = Path(tempfile.mkdtemp(prefix="tfdist-test-"))

    def run(self) -> Report:
        """Runs all checks. If it is left by an exception, its processes have ended."""
        try:
            failed, reason = self._run()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return self.report(failed, reason)

    def report(self, failed: str = "", reason: str = "") -> Report:
        """Returns what is known.

        Args:
            failed: the check that has failed; "" if none has.
            reason: why.
        """
        return Report(
            task=self._config.task_name,
            where=self._where,
            outcomes=completed(self._outcomes, failed=failed, reason=reason),
            seconds=time.monotonic() - self._begun,
            output=self._output,
        )

    @property
    def running(self) -> str:
        """The check that is running."""
        return first_without_outcome(self._outcomes)

    def _run(self) -> tuple[str, str]:
        """Runs the processes; returns the check that has failed, and why, or two empty texts."""
        workers = str(self._config.num_workers)
        self._say("computes on one device what the workers have to compute")
        ended = self._process("tfdist.test.one_device", str(self._folder), workers, environment=self._alone())
        if ended.code:
            return checks.START, f"the training on one device {self._why(ended)}"
        self._say(f"runs the checks on {self._where}")
        ended = self._stage("checks", attempt=0)
        record = record_of(self._folder, "checks")
        if record.running() != checks.RESUME:
            return record.running() or self.running, f"{self._config.task_name} {self._why(ended)}"
        # This training never ends by itself: the last worker is killed, and the others lose it.
        if not ended.code:
            return checks.RESUME, f"the training ended although worker {workers} was to be killed"
        self._say("starts the workers again, one of which was killed")
        ended = self._stage("resume", attempt=1)
        return (checks.RESUME, f"{self._config.task_name} {self._why(ended)}") if ended.code else ("", "")

    def _stage(self, stage: str, *, attempt: int) -> Ended:
        record, before = record_of(self._folder, stage), list(self._outcomes)
        noticed: list[float] = []

        def follow() -> bool:
            """Reads the record; returns whether the process has had enough time to notice that a worker was killed."""
            found = [*before, *record.outcomes()]
            for outcome in found[len(self._outcomes) :]:
                self._say(f"{outcome.check}: {outcome.verdict}")
            self._outcomes = found
            if stage == "checks" and not noticed and record.running() == checks.RESUME:
                noticed.append(time.monotonic() + _SECONDS_TO_NOTICE)
            return bool(noticed) and time.monotonic() > noticed[0]

        seconds = max(1.0, self._deadline - time.monotonic())
        words = ("tfdist.test.worker", stage, str(self._folder), str(self._config.num_workers), f"{seconds:.0f}")
        ended = self._process(*words, environment=self._in_cluster(attempt), is_over=follow)
        follow()
        return ended

    def _process(
        self, module: str, *words: str, environment: Mapping[str, str], is_over: Callable[[], bool] = lambda: False
    ) -> Ended:
        ended = run(
            ["-m", module, *words],
            environment=environment,
            log=self._folder / "log",
            deadline=self._deadline,
            is_over=is_over,
        )
        self._output = last_lines(ended.text, count=_SHOWN_LINES) if ended.code else ""
        return ended

    def _why(self, ended: Ended) -> str:
        return why(ended, timeout_seconds=self._timeout_seconds, own=self._config.task_name)

    def _alone(self) -> dict[str, str]:
        """Returns the environment of a process that computes on one device, which is a CPU."""
        without = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", PROGRESS_FILE)}
        return {**without, FORCED: "none", "CUDA_VISIBLE_DEVICES": "-1"}

    def _in_cluster(self, attempt: int) -> dict[str, str]:
        """Returns the environment of a worker; the attempt tells its peers from those of an earlier start."""
        own = launched()
        text = repr(sorted(self._config.jobs.items()))
        return {
            **os.environ,
            FORCED: "tf_config",
            "TF_CONFIG": self._config.to_tf_config(),
            LAUNCH_ID: own.launch_id if own else f"test-{zlib.crc32(text.encode()):08x}",
            ATTEMPT: str((own.attempt if own else 0) + attempt),
            PROGRESS_FILE: "",
        }
