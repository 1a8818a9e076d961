"""A forked child, which a fault may kill, and which tells its parent what it has done. It imports no TensorFlow."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable

from benchmarks.chaos_faults.fault import Found, Trouble

DEADLINE_SECONDS = 60.0


class Child:
    """A forked child, which tells its parent what it has done.

    Args:
        action: what the child does; it gets a function that sends a word to the parent.
    """

    def __init__(self, action: Callable[[Callable[[str], None]], None]) -> None:
        self._words, end = os.pipe()
        os.set_blocking(self._words, False)
        self._text = b""
        self.code: int | None = None
        write = os.write
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            # What a fault makes a writer say is expected, and is not for the reader of the table.
            logging.getLogger("tfdist").setLevel(logging.CRITICAL)
            try:
                action(lambda word: (write(end, f"{word} ".encode()), None)[1])
                code = 0
            except BaseException as error:
                write(end, f"error:{error!r} ".replace(" ", "_").encode() + b" ")
            finally:
                os._exit(code)
        os.close(end)

    def words(self) -> list[str]:
        """Returns the words that have come."""
        try:
            while data := os.read(self._words, 65536):
                self._text += data
        except BlockingIOError:
            pass
        return self._text.decode().split(" ")[:-1]

    def last(self, what: str) -> int:
        """Returns the last step of which the child has said something, such as "done"; 0 if there is none."""
        return max((int(word.partition(":")[2]) for word in self.words() if word.startswith(f"{what}:")), default=0)

    def send(self, number: int) -> None:
        """Sends a signal, unless the child has ended."""
        if self.code is None:
            os.kill(self.pid, number)

    def wait_for(self, word: str) -> bool:
        """Waits for a word, and returns whether it has come before the end of the child."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while word not in self.words() and not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.001)
        return word in self.words()

    def has_ended(self) -> bool:
        """Returns whether the child has ended."""
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code is not None

    def end(self, found: Found) -> None:
        """Waits for the end of the child, and kills it after a deadline."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self.has_ended():
            if time.monotonic() > deadline:
                found.add(Trouble.HANG, f"the writer did not end within {DEADLINE_SECONDS:.0f} s")
                self.kill()
                break
            time.sleep(0.0005)
        errors = [word.replace("_", " ") for word in self.words() if word.startswith("error:")]
        found.check(not errors, f"the writer failed: {' '.join(errors)}", Trouble.WRONG)
        os.close(self._words)
        self._words = os.open(os.devnull, os.O_RDONLY)

    def kill(self) -> None:
        """Kills the child if it lives."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Kills the child if it lives, and closes the pipe."""
        self.kill()
        os.close(self._words)
