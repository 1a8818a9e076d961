"""How `tfdist launch --scale-to N` tells a running launcher the number of workers: two small files beside the logs.

The launcher holds a lock on `elastic.json`, which says what numbers it accepts. `scale-to.json` holds a request. The
launcher answers by removing the request and by writing its id to `elastic.json`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

STATE_NAME = "elastic.json"
REQUEST_NAME = "scale-to.json"
ANSWER_SECONDS = 30.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """The numbers of workers that a run may have.

    Args:
        least: the smallest number, at least 1.
        most: the largest number.

    Raises:
        ValueError: if the numbers are not in this order.

    Example:
        >>> from tfdist.launch import Elastic
        >>> Elastic.parse("1:4")
        Elastic(least=1, most=4)
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"expected --elastic MIN:MAX with 1 <= MIN <= MAX, received {self.least}:{self.most}.")

    @classmethod
    def parse(cls, text: str) -> Elastic:
        """Returns the numbers in a text such as 1:4."""
        least, colon, most = text.partition(":")
        if not (colon and all(part.isascii() and part.isdigit() for part in (least, most))):
            raise ValueError(f"expected --elastic MIN:MAX, received {text!r}; write it as in --elastic 1:4.")
        return cls(least=int(least), most=int(most))


class ScaleRequests:
    """The requests to a running launcher; the launcher looks for a new one every second.

    Args:
        log_dir: the directory of the log files.
        elastic: the numbers of workers that are accepted.

    Raises:
        ValueError: if another elastic run uses the directory.
    """

    def __init__(self, log_dir: Path, elastic: Elastic) -> None:
        self._path = log_dir / STATE_NAME
        self._request = log_dir / REQUEST_NAME
        self._elastic = elastic
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise ValueError(
                f"expected --log-dir to be a directory that no other elastic run uses, received {str(log_dir)!r}; "
                "choose another --log-dir."
            ) from None
        self._request.unlink(missing_ok=True)
        self._write(None)

    def take(self) -> int | None:
        """Returns the number of workers of a new request; None if there is none."""
        try:
            found = json.loads(self._request.read_text())
            self._request.unlink()
            workers, request = int(found["workers"]), str(found["id"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            # The file was not written by `tfdist launch`, which checks the number and renames the file into its place.
            self._request.unlink(missing_ok=True)
            return None
        self._write(request)
        return workers if self._elastic.least <= workers <= self._elastic.most else None

    def close(self) -> None:
        """Removes the files; requests are refused from now on."""
        for path in (self._path, self._request):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def __enter__(self) -> ScaleRequests:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, answered: str | None) -> None:
        state = {"least": self._elastic.least, "most": self._elastic.most, "answered": answered}
        data = json.dumps(state).encode()
        os.pwrite(self._descriptor, data, 0)
        os.ftruncate(self._descriptor, len(data))


def request_workers(log_dir: Path, workers: int, *, timeout_seconds: float = ANSWER_SECONDS) -> None:
    """Tells the launcher whose logs are in a directory to go on with another number of workers.

    Args:
        log_dir: the directory of the log files of the running launcher.
        workers: the number of workers.
        timeout_seconds: how long the launcher may take to answer.

    Raises:
        ValueError: if no elastic run has its logs there, or it does not accept the number.
        TimeoutError: if the launcher does not answer in time.
    """
    state = _state(log_dir)
    if state is None:
        raise ValueError(
            f"expected --log-dir to be that of a run with --elastic that goes on, received {str(log_dir)!r}; "
            "the run names its directory at its start."
        )
    if not state["least"] <= workers <= state["most"]:
        raise ValueError(
            f"expected --scale-to to be from {state['least']} to {state['most']}, as --elastic of the run says, "
            f"received {workers}."
        )
    request = uuid.uuid4().hex
    scratch = log_dir / f"{REQUEST_NAME}.{request}"
    scratch.write_text(json.dumps({"workers": workers, "id": request}))
    scratch.rename(log_dir / REQUEST_NAME)
    end = time.monotonic() + timeout_seconds
    while time.monotonic() < end:
        state = _state(log_dir)
        if state is None:
            raise ValueError(f"expected the run in {str(log_dir)!r} to go on, but it has ended meanwhile.")
        if state["answered"] == request:
            return
        time.sleep(_POLL_SECONDS)
    (log_dir / REQUEST_NAME).unlink(missing_ok=True)
    raise TimeoutError(
        f"expected the launcher of the run in {str(log_dir)!r} to answer within {timeout_seconds:g} s, received no "
        "answer; the launcher may be stopped."
    )


def _state(log_dir: Path) -> dict[str, Any] | None:
    """Returns what the launcher has written; None if no launcher holds the lock."""
    while True:
        try:
            with (log_dir / STATE_NAME).open() as file:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None
                return dict(json.load(file))
        except FileNotFoundError:
            return None
        except ValueError:
            time.sleep(_POLL_SECONDS)  # The launcher writes at this moment.
