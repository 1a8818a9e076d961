"""BackgroundWriter: writes snapshots to the disk in a thread, one at a time. This file is independent of TensorFlow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tfdist._log import get_logger


class BackgroundWriter:
    """Runs one job at a time in a thread; an error of the operating system is reported, and the program goes on.

    Example:
        >>> from tfdist.checkpoint.writer import BackgroundWriter
        >>> writer, written = BackgroundWriter(), []
        >>> writer.start(lambda: written.append(1), to="write 1")
        >>> writer.wait(), written
        (True, [1])
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._has_failed = False
        self.processor_seconds = 0.0
        """Time of the processor that the last job took that succeeded and was measured."""

    @property
    def is_busy(self) -> bool:
        """Whether a job is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], object], *, to: str, is_measured: bool = True) -> None:
        """Starts a job, after the end of the job before.

        Args:
            job: what to do.
            to: what the job does, such as "write the snapshot of step 3", for the log.
            is_measured: whether `processor_seconds` becomes the time of this job.
        """
        self.wait()

        def run() -> None:
            begun = time.thread_time()
            try:
                job()
                self._has_failed = False
                if is_measured:
                    self.processor_seconds = time.thread_time() - begun
            except OSError as error:
                get_logger().warning("could not %s: %s; the training goes on", to, error)

        # Until the job has succeeded, so that no error of any kind counts as success.
        self._has_failed = True
        self._thread = threading.Thread(target=run, name="tfdist-snapshot", daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the end of the job, and returns whether the last one has ended and succeeded.

        Args:
            seconds: how long to wait; None for as long as the job takes.
        """
        # Another thread may call this method, too.
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return not self.is_busy and not self._has_failed
