"""InUse: a note in a directory of snapshots, by which a second training in the directory is refused, on any host.

The note names the process that uses the directory, and has a number that this process raises every few seconds. A
process of the same host can be looked up. From another host, the training lives if the number rises: clocks are not
compared, and no lock of a file system has to outlive a host. This file is independent of TensorFlow.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path

from tfdist._log import get_logger
from tfdist.saving.scratch_folder import scratch_folder

NAME = ".in-use"
_RENEWAL_SECONDS = 3.0
_SILENT_SECONDS = 15.0
_POLL_SECONDS = 0.5
# The note is rewritten in place, which needs no room on a full disk as long as its size stays the same.
_SIZE = 512
_READS, _REREAD_SECONDS = 5, 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that uses a directory.

    Attributes:
        token: a random text, which tells two trainings of one process from each other.
        host: name of its host.
        machine: names the start of the host and the space of its process numbers.
        process: number of the process.
        started: when the process has started, in the unit of the system.
    """

    token: str
    host: str
    machine: str
    process: int
    started: int

    @classmethod
    def of_this_process(cls) -> Owner:
        """Returns this process as an owner with a token of its own."""
        return cls(
            token=uuid.uuid4().hex,
            host=socket.gethostname()[:200],
            machine=_machine(),
            process=os.getpid(),
            started=_started(os.getpid()) or 0,
        )

    def is_alive(self) -> bool | None:
        """Returns whether the process lives; None if it is on another machine, where it cannot be looked up."""
        if self.machine != _machine():
            return None
        return _started(self.process) == self.started


class InUse:
    """Marks a directory as used by this training.

    Args:
        directory: an existing directory, which trainings on several hosts may share.
        renewal_seconds: how often the note is renewed.
        silent_seconds: how long a note of another host may stay the same until its training counts as dead.

    Example:
        >>> import tempfile
        >>> from tfdist.checkpoint.in_use import InUse
        >>> directory = tempfile.mkdtemp()
        >>> first = InUse(directory)
        >>> first.begin()
        >>> InUse(directory).begin()
        Traceback (most recent call last):
        ...
        ValueError: expected no other training in the directory ... on this host (process ...) that still runs; ...
        >>> first.end()
        >>> InUse(directory).begin()
    """

    def __init__(
        self, directory: str, *, renewal_seconds: float = _RENEWAL_SECONDS, silent_seconds: float = _SILENT_SECONDS
    ) -> None:
        self._directory, self._path = directory, Path(directory, NAME)
        self._renewal_seconds, self._silent_seconds = renewal_seconds, silent_seconds
        self._owner = Owner.of_this_process()
        self._file: int | None = None
        self._ended = threading.Event()
        self._successor: Owner | None = None
        self._guard = threading.Lock()

    def begin(self) -> None:
        """Marks the directory; waits if it has the note of a training on another host that may have died.

        Raises:
            ValueError: if another training uses the directory.
            OSError: if the note cannot be written.
        """
        while True:
            found = _read(self._path)
            if found is not None:
                self._refuse_or_wait(*found)
                if _read(self._path) != found:
                    # The other training has ended meanwhile, or a third one was quicker.
                    continue
            if self._write(replaced=found is not None):
                break
        threading.Thread(target=self._renew, name="tfdist-in-use", daemon=True).start()
        atexit.register(self.end)

    def check(self) -> None:
        """Looks whether another training has taken the directory over, such as while this process was stopped.

        Raises:
            ValueError: if it has. What this training writes from now on would be mixed with the other one's files.
        """
        if self._successor is not None:
            other = self._successor
            raise ValueError(
                f"expected no other training in the directory {self._directory!r}, received one on {_where(other)} "
                "that has begun while this one made no sign of life; this one ends."
            )

    def end(self) -> None:
        """Gives the directory free."""
        self._ended.set()
        with self._guard:
            if self._file is None:
                return
            with contextlib.suppress(OSError):
                found = _read(self._path)
                if found is not None and found[0] == self._owner:
                    self._path.unlink()
            os.close(self._file)
            self._file = None
        atexit.unregister(self.end)

    def _refuse_or_wait(self, owner: Owner | None, number: int) -> None:
        """Returns when the training of a note is known to be dead."""
        if owner is None:
            # The file system has lost a part of the note when its host died.
            return
        is_alive = owner.is_alive()
        if is_alive is None:
            get_logger().info(
                "%s has the note of a training on %s; waiting up to %g s for a sign of life",
                self._directory,
                _where(owner),
                self._silent_seconds,
            )
            is_alive = self._is_renewed((owner, number))
        if is_alive:
            raise ValueError(
                f"expected no other training in the directory {self._directory!r}, received one on {_where(owner)} "
                "that still runs; wait for its end, or choose another directory."
            )

    def _is_renewed(self, before: tuple[Owner | None, int]) -> bool:
        deadline = time.monotonic() + self._silent_seconds
        while time.monotonic() < deadline:
            time.sleep(min(_POLL_SECONDS, self._silent_seconds))
            found = _read(self._path)
            if found != before:
                # None: the training has ended meanwhile.
                return found is not None
        return False

    def _write(self, *, replaced: bool) -> bool:
        """Puts the note into the directory; returns False if another training was first."""
        with scratch_folder(self._directory) as scratch:
            note = Path(scratch, "note")
            note.write_bytes(_note(self._owner, 0))
            file = os.open(note, os.O_RDWR)
            try:
                os.fsync(file)
                if replaced:
                    os.replace(note, self._path)
                else:
                    os.link(note, self._path)
            except FileExistsError:
                os.close(file)
                return False
            except OSError:
                os.close(file)
                raise
        self._file = file
        return True

    def _renew(self) -> None:
        number = 0
        while not self._ended.wait(self._renewal_seconds):
            number += 1
            with self._guard, contextlib.suppress(OSError):
                if self._file is None:
                    return
                found = _read(self._path)
                if found is not None and found[0] is not None and found[0] != self._owner:
                    self._successor = found[0]
                    return
                # By its handle: the path may already lead to the note of a training that has taken over.
                os.pwrite(self._file, _note(self._owner, number), 0)
                os.fsync(self._file)


def _note(owner: Owner, number: int) -> bytes:
    text = json.dumps({**dataclasses.asdict(owner), "number": number})
    return text.encode().ljust(_SIZE)


def _read(path: Path) -> tuple[Owner | None, int] | None:
    """Returns the owner and the number of a note; None without a note, and no owner if it is not complete."""
    # A living owner may be rewriting the note at this moment.
    for _ in range(_READS):
        try:
            fields = json.loads(path.read_bytes())
            return Owner(**{field.name: fields[field.name] for field in dataclasses.fields(Owner)}), fields["number"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            time.sleep(_REREAD_SECONDS)
    return None, 0


def _where(owner: Owner) -> str:
    host = "this host" if owner.machine == _machine() else f"host {owner.host}"
    return f"{host} (process {owner.process})"


def _machine() -> str:
    """Returns a text that another start of this host, and another container on it, does not have."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown {uuid.getnode()}"


def _started(process: int) -> int | None:
    """Returns when a process of this machine has started; None if it has ended."""
    try:
        # The name of the process, in parentheses, may contain blanks.
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])
