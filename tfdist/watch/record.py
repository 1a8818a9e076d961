"""What a worker publishes through the mesh for the watches of the other workers."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

from tfdist.cluster.process_state import process_state
from tfdist.watch.machine import machine_name
from tfdist.watch.mesh import WorkerState
from tfdist.watch.phases import OUTSIDE
from tfdist.watch.standing import Standing
from tfdist.watch.straggler import Shares

_PREFIX = "watch."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """The record of a worker; the attributes are those of Standing, unless they are described here.

    Attributes:
        number: how many steps of all kinds have begun.
        pid: process id.
        machine: name of its machine.
        share_batch: see Shares; None while it is not known.
        share_sum: see Shares.
        share_callbacks: see Shares.

    Example:
        >>> record = Record(phase="training", seconds=0.5, limit=60.0, step=3)
        >>> Record.from_fields(record.to_fields()) == record
        True
        >>> Record.from_fields({"of": "others"}) is None
        True
    """

    phase: str = OUTSIDE
    seconds: float = 0.0
    limit: float = 0.0
    step: int = 1
    epoch: int = 1
    batch: int = 1
    waits: str | None = None
    counts_batches: bool = False
    at: str = ""
    data_thread: str = ""
    number: int = 0
    pid: int = dataclasses.field(default_factory=os.getpid)
    machine: str = dataclasses.field(default_factory=machine_name)
    share_batch: float | None = None
    share_sum: float | None = None
    share_callbacks: float | None = None

    def to_fields(self) -> dict[str, Any]:
        """Returns the fields to publish."""
        return {_PREFIX + name: value for name, value in vars(self).items()}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Record | None:
        """Returns the record in the fields that a worker has published; None if it has published none."""
        names = [field.name for field in dataclasses.fields(cls)]
        if any(_PREFIX + name not in fields for name in names):
            return None
        return cls(**{name: fields[_PREFIX + name] for name in names})

    @property
    def shares(self) -> Shares | None:
        """The shares of the worker's time, if they are known."""
        if self.share_batch is None or self.share_sum is None or self.share_callbacks is None:
            return None
        return Shares(batch=self.share_batch, sum=self.share_sum, callbacks=self.share_callbacks)


class Received:
    """The records of the other workers, and since when each has been unchanged.

    Args:
        addresses: addresses of TensorFlow's servers, ordered by worker.
        longest_limit: limit of a worker of which nothing is known: it may be in any phase.
    """

    def __init__(self, addresses: list[str], *, longest_limit: float) -> None:
        self._addresses, self._longest_limit = addresses, longest_limit
        self._began = time.monotonic()
        # By worker: phase and step, its own count of seconds, and since when it has been there.
        self._since: dict[int, tuple[tuple, float, float]] = {}

    def standing(self, worker: int, state: WorkerState | None, *, own: Standing) -> tuple[Standing, Record | None]:
        """Returns what is known about another worker, and its record.

        Args:
            worker: number of the worker.
            state: its state in the mesh.
            own: what is known about this worker. A worker of which nothing is known is taken to be where this one is.
        """
        now = time.monotonic()
        address = self._addresses[worker]
        record = None if state is None else Record.from_fields(state.fields)
        if state is None or record is None:
            # A worker that publishes something else than records may be stopped, too.
            silent = now - self._began if state is None else state.age_seconds
            unknown = Standing(
                worker=worker,
                phase=own.phase,
                seconds=own.seconds,
                limit=self._longest_limit,
                step=own.step,
                address=address,
                silent_seconds=silent,
                is_heard=state is not None,
            )
            return unknown, None
        key = (record.phase, record.step, record.epoch, record.batch, record.number)
        known = self._since.get(worker)
        # The worker counts from 0 again if its process could not run for a while.
        if known is None or known[0] != key or record.seconds < known[1]:
            # A worker that is not in fit publishes only once: its own count of seconds stands still.
            known = key, record.seconds, now - record.seconds
        self._since[worker] = known = known[0], record.seconds, known[2]
        is_silent_here = record.machine == machine_name() and state.age_seconds > 1
        standing = Standing(
            worker=worker,
            phase=record.phase,
            seconds=now - known[2],
            limit=record.limit,
            step=record.step,
            epoch=record.epoch,
            batch=record.batch,
            waits=record.waits,
            counts_batches=record.counts_batches,
            at=record.at,
            data_thread=record.data_thread,
            address=address,
            silent_seconds=state.age_seconds,
            state=process_state(record.pid) if is_silent_here else "",
            pid=record.pid,
        )
        return standing, record
