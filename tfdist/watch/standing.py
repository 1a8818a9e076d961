"""Standing: what is known about one worker at the moment at which a stall is judged."""

from __future__ import annotations

import dataclasses

# Records come every half second.
FRESH_SECONDS = 1.5
# After this time, the address of the worker is asked.
PROBE_SECONDS = 2.0
# A Python process may be kept from running for some seconds, such as by a large trace. TensorFlow itself gives up a
# worker that has been silent for about 9 s, and should not be the first to say so.
SILENT_SECONDS = 4.0
# A look-up of a name that takes longer counts as no reply.
REPLY_SECONDS = 15.0
SERVES = "serves"
"""Reply of a worker whose TensorFlow server answers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """What is known about one worker.

    Attributes:
        worker: number of the worker.
        phase: its phase, as in `tfdist.watch.phases`.
        seconds: how long it has been in this phase.
        limit: how long it may be in this phase.
        step: number of its current training step.
        epoch: number of its epoch, from 1.
        batch: number of its step in the epoch, from 1.
        waits: "batch" if it waits until the other workers have a batch, "sum" if it waits in a sum of gradients, "" if
            it waits for no other worker, None if this is not known.
        counts_batches: whether the workers wait for each other's batches before each step.
        at: where its main thread was last, such as "train.py:12 in main".
        data_thread: where a thread of its pipeline has been since the stall began; "" if there is none.
        address: address of its TensorFlow server; "" for the only worker.
        silent_seconds: time since its last record.
        is_heard: whether any record of it has come.
        reply: what its address has replied since it is silent: SERVES, or a reason of `tfdist.cluster.probe`; None if
            the reply is not there yet.
        state: letter of the state of its process, from /proc; "" on other machines.
        pid: process id on its machine.
    """

    worker: int
    phase: str
    seconds: float
    limit: float
    step: int = 1
    epoch: int = 1
    batch: int = 1
    waits: str | None = None
    counts_batches: bool = False
    at: str = ""
    data_thread: str = ""
    address: str = ""
    silent_seconds: float = 0.0
    is_heard: bool = True
    reply: str | None = None
    state: str = ""
    pid: int = 0

    @property
    def is_silent(self) -> bool:
        """Whether the records of this worker have ceased."""
        return self.silent_seconds > SILENT_SECONDS

    @property
    def is_fresh(self) -> bool:
        """Whether the record of this worker is the one of this moment."""
        return self.silent_seconds <= FRESH_SECONDS

    @property
    def is_late(self) -> bool:
        """Whether the worker has been in its phase for longer than the limit."""
        return self.seconds > self.limit
