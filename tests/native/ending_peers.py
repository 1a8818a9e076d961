"""Ranks that end while others wait for them: python ending_peers.py LIBRARY CHANNEL CASE. Each rank prints what it saw.

Each rank is a process forked from this one, without TensorFlow. What rank 0 prints is the result: its code, how many
seconds after the end of rank 1 it knew, and the message. The other ranks are killed when it has ended.
"""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBRARY = ctypes.CDLL(sys.argv[1])
LIBRARY.tfdist_listen.restype = ctypes.c_void_p
LIBRARY.tfdist_connect.restype = ctypes.c_int64
LIBRARY.tfdist_start.restype = ctypes.c_int64
TEXT = 4096
CHILDREN: list[int] = []
ALL_REDUCE, SEND, RECEIVE = 1, 5, 6
ABORTED = 10
M_ARENA_MAX = -8
# Much longer than a rank may take to see the end of another one.
SECONDS = 20.0
ENDS_AT = 0.5
# Arrays of which each rank sums a part, and whose messages stay in the buffers of a connection.
ELEMENTS = 100_000
# Arrays that are sent whole to every rank: nothing more is expected of a rank whose array has come.
FEW = 100
# Arrays whose parts take 10 MiB.
MANY = 8_000_000


class Rank:
    """A rank that has connected."""

    def __init__(self, rank: int, listener: int, addresses: list[str]) -> None:
        self.rank = rank
        self._arrays: list[Any] = []
        error = ctypes.create_string_buffer(TEXT)
        self.number = LIBRARY.tfdist_connect(
            ctypes.c_void_p(listener), rank, "\n".join(addresses).encode(), ctypes.c_double(SECONDS), error, TEXT
        )
        assert self.number, error.value
        self.began = time.monotonic()

    def sleep_until(self, seconds: float) -> None:
        time.sleep(max(0.0, self.began + seconds - time.monotonic()))

    def start(self, kind: int, elements: int, *, peer: int = 0, tag: int = 7, seconds: float = SECONDS) -> int:
        values, out = (ctypes.c_float * elements)(), (ctypes.c_float * elements)()
        self._arrays += [values, out]
        return int(
            LIBRARY.tfdist_start(
                ctypes.c_int64(self.number), kind, 1, ctypes.c_uint64(elements), values, out, peer,
                ctypes.c_uint64(tag), ctypes.c_double(seconds),
            )
        )  # fmt: skip

    def result(self, operation: int) -> tuple[int, str]:
        error = ctypes.create_string_buffer(TEXT)
        code = LIBRARY.tfdist_wait(ctypes.c_int64(operation), error, TEXT)
        return int(code), error.value.decode()

    def wait(self, operation: int) -> int:
        code, message = self.result(operation)
        self.say(f"{code} {time.monotonic() - self.began - ENDS_AT:.2f} {message}")
        return code

    def abort(self, message: bytes) -> None:
        LIBRARY.tfdist_abort(ctypes.c_int64(self.number), ABORTED, message)

    def close(self) -> None:
        LIBRARY.tfdist_close(ctypes.c_int64(self.number))

    def say(self, text: str) -> None:
        os.write(1, f"rank {self.rank}: {text}\n".encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_in_a_stop(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def fork(body: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(0)
    return child


# Ranks 0 and 1 have started a sum, and rank 2 has not.


def waits(rank: Rank, *, elements: int = ELEMENTS) -> None:
    rank.wait(rank.start(ALL_REDUCE, elements))


def is_killed(rank: Rank, *, elements: int = ELEMENTS) -> None:
    rank.start(ALL_REDUCE, elements)
    rank.sleep_until(ENDS_AT)
    die()


def aborts(rank: Rank, *, elements: int) -> None:
    rank.start(ALL_REDUCE, elements)
    rank.sleep_until(ENDS_AT)
    rank.abort(b"the step of rank 1 failed")


def gives_up(rank: Rank, *, elements: int) -> None:
    rank.wait(rank.start(ALL_REDUCE, elements, seconds=ENDS_AT))


def closes(rank: Rank, *, elements: int) -> None:
    rank.start(ALL_REDUCE, elements)
    rank.sleep_until(ENDS_AT)
    rank.close()


def straggles(_: Rank) -> None: ...


def is_killed_before_rank_2_has_few(rank: Rank) -> None:
    """In front of the array is what rank 2 has not asked for, more than the channel takes."""
    rank.start(SEND, MANY, peer=2, tag=1)
    is_killed(rank, elements=FEW)


# Rank 2 is killed while rank 0 is stopped. Rank 1 knows it at once, and has ended too when rank 0 goes on.


def is_stopped(rank: Rank) -> None:
    operation = rank.start(ALL_REDUCE, MANY)
    rank.sleep_until(ENDS_AT / 2)
    os.kill(os.getpid(), signal.SIGSTOP)
    rank.wait(operation)


def lets_rank_0_go_on(rank: Rank) -> None:
    """The first process that was forked is rank 0. Without this rank, the sum cannot end before rank 0 is stopped."""
    while not is_in_a_stop(CHILDREN[0]):
        time.sleep(0.01)
    waits(rank, elements=MANY)
    rank.close()
    rank.sleep_until(4 * ENDS_AT)
    os.kill(CHILDREN[0], signal.SIGCONT)


# Rank 1 has left, and needs nothing more; the others send to each other.


def sums_and_leaves(rank: Rank) -> None:
    rank.result(rank.start(ALL_REDUCE, FEW))
    rank.close()


def sums_and_receives(rank: Rank) -> None:
    rank.result(rank.start(ALL_REDUCE, FEW))
    rank.sleep_until(ENDS_AT)
    rank.wait(rank.start(RECEIVE, MANY, peer=2, tag=1))


def sums_and_sends(rank: Rank) -> None:
    rank.result(rank.start(ALL_REDUCE, FEW))
    rank.result(rank.start(SEND, MANY, peer=0, tag=1))


# A process that rank 1 has forked lives on.


def is_killed_after_fork(rank: Rank) -> None:
    fork(lambda: time.sleep(2 * SECONDS))
    rank.sleep_until(ENDS_AT)
    die()


def waits_later(rank: Rank) -> None:
    rank.sleep_until(ENDS_AT)
    waits(rank)


def closes_after_fork(rank: Rank) -> None:
    fork(lambda: time.sleep(2 * SECONDS))
    rank.close()


def closes_with_copies(rank: Rank) -> None:
    """As after a fork that calls no handler: another descriptor keeps each socket open."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup(number)
        except OSError:
            continue
    rank.close()


def uses_in_a_fork(rank: Rank) -> None:
    """A process that was forked starts a sum, closes the connections and ends; its parent still sums."""

    def body() -> None:
        code = rank.wait(rank.start(ALL_REDUCE, ELEMENTS))
        rank.abort(b"a forked process aborts nothing")
        rank.close()
        os._exit(100 + code)

    child = fork(body)
    until = time.monotonic() + SECONDS / 4
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
        time.sleep(0.01)
    rank.say(f"child {os.waitstatus_to_exitcode(ended[1]) if ended[0] else 'hangs'}")
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
    waits_and_sums_again(rank)


def waits_and_sums_again(rank: Rank) -> None:
    """The second sum ends after both ranks have printed the result of the first, and before rank 1 is killed."""
    waits(rank)
    rank.result(rank.start(ALL_REDUCE, FEW))


# Rank 1 aborts while its channel is full.


def aborts_with_a_full_channel(rank: Rank) -> None:
    rank.start(SEND, MANY, tag=1)
    rank.sleep_until(ENDS_AT)
    rank.abort(b"m" * 500)


def asks_for_what_is_behind(rank: Rank) -> None:
    rank.wait(rank.start(RECEIVE, FEW, peer=1, tag=2))


# Ranks 1 and 2 start two sums in different order, so that rank 0 has to keep summands of both, without memory for them.


def has_no_memory(rank: Rank) -> None:
    first, _ = rank.start(ALL_REDUCE, MANY, tag=1), rank.start(ALL_REDUCE, MANY, tag=2)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
    rank.say("limited")
    rank.wait(first)


def starts_one_sum(rank: Rank) -> None:
    rank.sleep_until(ENDS_AT)
    rank.wait(rank.start(ALL_REDUCE, MANY, tag=rank.rank))


def while_one_straggles(waiting: Callable[..., None], ending: Callable[..., None], elements: int) -> list[Any]:
    return [functools.partial(waiting, elements=elements), functools.partial(ending, elements=elements), straggles]


CASES: dict[str, list[Callable[[Rank], None]]] = {
    "killed": while_one_straggles(waits, is_killed, ELEMENTS),
    "killed with few": while_one_straggles(waits, is_killed, FEW),
    "killed with many": while_one_straggles(waits, is_killed, MANY),
    "killed with few on the way": [functools.partial(waits, elements=FEW), is_killed_before_rank_2_has_few, straggles],
    "killed while one is stopped": [is_stopped, lets_rank_0_go_on, functools.partial(is_killed, elements=MANY)],
    "aborts": while_one_straggles(waits, aborts, ELEMENTS),
    "aborts with many": while_one_straggles(waits, aborts, MANY),
    "gives up": while_one_straggles(waits, gives_up, ELEMENTS),
    "gives up with many": while_one_straggles(waits, gives_up, MANY),
    "closes": while_one_straggles(waits, closes, ELEMENTS),
    "closes with many": while_one_straggles(waits, closes, MANY),
    "leaves": [sums_and_receives, sums_and_leaves, sums_and_sends],
    "killed after a fork": [waits, is_killed_after_fork],
    "closed after a fork": [waits_later, closes_after_fork],
    "closed with copies": [waits_later, closes_with_copies],
    "used in a fork": [uses_in_a_fork, waits_and_sums_again],
    "without memory": [has_no_memory, starts_one_sum, starts_one_sum],
    "aborts with a full channel": [asks_for_what_is_behind, aborts_with_a_full_channel],
}


def listen(shares_memory: bool, ranks: int) -> tuple[list[int], list[str]]:
    listeners, addresses = [], []
    for rank in range(ranks):
        text = ctypes.create_string_buffer(TEXT)
        listener = LIBRARY.tfdist_listen(b"127.0.0.1", int(shares_memory), b"x" * 64, text, TEXT)
        assert listener, text.value
        LIBRARY.tfdist_address(ctypes.c_void_p(listener), text, TEXT)
        listeners.append(listener)
        addresses.append(" ".join([f"rank_{rank}", *text.value.decode().split(" ")[1:]]))
    return listeners, addresses


def main() -> None:
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    # No thread has address space in reserve, which a limit would not count.
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    channel, case = sys.argv[2:]
    listeners, addresses = listen(channel == "shared memory", len(CASES[case]))
    for rank, body in enumerate(CASES[case]):

        def run(rank: int = rank, body: Callable[[Rank], None] = body) -> None:
            connected = Rank(rank, listeners[rank], addresses)
            body(connected)
            if rank:
                time.sleep(2 * SECONDS)

        CHILDREN.append(fork(run))
    os.waitpid(CHILDREN[0], 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    main()
