"""Requests between workers: to write the stacks to the log, and to end the process with exit code 75."""

from __future__ import annotations

import functools
import time

from tfdist._log import get_logger
from tfdist.watch.leave import leave
from tfdist.watch.mesh import Mesh, WorkerState
from tfdist.watch.restart_on_loss import LATE_SECONDS, restart_on_loss
from tfdist.watch.stacks import dump_stacks

_DUMP = "watch.dump"
_END = "watch.end"
# Workers that judge alike ask each other at about the same time: one dump is enough.
_DUMP_AGAIN_SECONDS = 30.0


class Requests:
    """Asks the other workers, and answers their requests in the thread of the mesh, also outside of fit.

    Args:
        mesh: the mesh of the workers.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._dumped_at = -_DUMP_AGAIN_SECONDS
        self._asked = 0
        self._answered: dict[int, int] = {}
        mesh.on_change(self._answer)

    @staticmethod
    @functools.cache
    def of(mesh: Mesh) -> Requests:
        """Returns the requests of a mesh, which are made once."""
        return Requests(mesh)

    def dump_everywhere(self) -> None:
        """Writes the stacks of this process to its log, and asks the other workers to do the same."""
        self._asked += 1
        self._mesh.publish(urgent=True, **{_DUMP: self._asked})
        self._dump("the training makes no step")

    def end_everywhere(self, why: str) -> None:
        """Ends this process with exit code 75, and asks the other workers to do the same.

        Args:
            why: completes "the job ends with exit code 75, because ...".
        """
        get_logger().error("the job ends with exit code 75, because %s", why)
        try:
            self._mesh.publish_last(**{_END: why})
        finally:
            leave()

    def _answer(self, state: WorkerState) -> None:
        asked = state.fields.get(_DUMP)
        if isinstance(asked, int) and asked > self._answered.get(state.worker, 0):
            self._answered[state.worker] = asked
            restart_on_loss().expect(f"worker {state.worker} reports a stall", seconds=LATE_SECONDS)
            self._dump(f"worker {state.worker} reports that the training makes no step")
        why = state.fields.get(_END)
        if why:
            get_logger().error("this process ends with exit code 75, because worker %d says: %s", state.worker, why)
            leave()

    def _dump(self, why: str) -> None:
        now = time.monotonic()
        if now - self._dumped_at > _DUMP_AGAIN_SECONDS:
            self._dumped_at = now
            dump_stacks(why)
