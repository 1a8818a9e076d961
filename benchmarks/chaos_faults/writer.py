"""Faults of processes that write snapshots: forked children, without TensorFlow.

A child writes the snapshots of steps 1, 2, ... and tells its parent which steps are begun and complete. After the fault
the parent reads as the next process would: never a torn snapshot, and none that is older than the last complete one.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos_faults import damage, known
from benchmarks.chaos_faults.child import Child
from benchmarks.chaos_faults.fault import Fault, Found, Kind, Trouble
from benchmarks.chaos_faults.writing import SETUPS, STEPS, Place, Writer, give_parts
from tests.checkpoint import killing
from tfdist.checkpoint.manifest import NAME
from tfdist.checkpoint.memory import MemoryTier

KINDS = (
    Kind(name="SIGKILL at a system call", where=("the writer",), setups=SETUPS),
    Kind(name="SIGKILL at any time", where=("the writer",), setups=SETUPS[:3]),
    Kind(name="SIGKILL at the start", where=("the next writer",), setups=SETUPS[:3]),
    Kind(name="SIGSTOP", where=("then SIGKILL", "then SIGCONT"), setups=SETUPS[:3]),
    Kind(name="no space", where=("one call fails", "calls fail", "files are cut short"), setups=SETUPS[:3]),
    Kind(name="damaged file", where=damage.HOW, setups=("worker-0", "worker-1", NAME)),
    Kind(name="truncated memory", where=("the newest part",), setups=("memory",)),
    Kind(name="started twice", where=("a second writer",), setups=("disk", "memory")),
    Kind(name="read while it is written", where=("a reader",), setups=("disk",)),
)


def check(place: Place, setup: str, child: Child, found: Found) -> None:
    """Checks what the next process finds after the end of a writer."""
    begun = child.last("begun")
    if setup != "memory":
        step, _ = known.read_disk(place.directory, found)
        known.check_range("on disk", step, child.last("done"), begun, found)
        found.end = f"step {step} of {begun} on disk"
    if setup.startswith("memory"):
        step = known.read_memory(place.directory, place.root, found)
        known.check_range("in memory", step, child.last("kept"), begun, found)
        found.end += f"{', ' if found.end else ''}step {step} of {begun} in memory"
        known.check_next_memory(place.directory, place.root, begun + 10, found)
    if setup != "memory":
        known.check_next_writer(place.directory, begun + 10, found)


def run(fault: Fault, folder: Path) -> Found:
    """Makes a fault and checks what it leaves.

    Args:
        fault: the fault.
        folder: an empty folder.
    """
    found, place = Found(), Place.within(folder)
    _ACTIONS[fault.kind](fault, place, found)
    return found


def _kill_at_a_call(fault: Fault, place: Place, found: Found) -> None:
    """Kills the writer, or the writer of another worker's parts, before one of its system calls on files."""
    by_two = fault.setup.startswith("parts")
    # One half of the moments hits the other worker.
    victim_gives, moment = by_two and fault.moment < 0.5, fault.moment * 2 % 1 if by_two else fault.moment

    def write(tell: Callable[[str], None]) -> None:
        if not victim_gives:
            killing.at_call(int(moment * _calls(place, fault.setup)), killing.killed)
        Writer(place, fault.setup).write(range(1, STEPS + 1), tell)

    def give(tell: Callable[[str], None]) -> None:
        if victim_gives:
            # Nine calls for each part.
            killing.at_call(int(moment * STEPS * 9), killing.killed)
        give_parts(place, tell)

    children = [Child(write), *([Child(give)] if by_two else [])]
    try:
        for child in children:
            child.end(found)
        check(place, fault.setup, children[0], found)
    finally:
        for child in children:
            child.close()


def _calls(place: Place, setup: str) -> int:
    """Returns the number of system calls on files that writing all steps takes; called in the child."""
    seen: list[str] = []
    scratch = place.directory.parent / "counted"
    counted = Place.within(scratch)
    stock = {name: getattr(os, name) for name in killing.CALLS}
    if setup.startswith("parts"):
        give_parts(counted, lambda word: None)
    killing.at_call(-1, killing.killed, seen)
    Writer(counted, setup).write(range(1, STEPS + 1), lambda word: None)
    for name, function in stock.items():
        setattr(os, name, function)
    shutil.rmtree(scratch)
    return len(seen)


def _writing(fault: Fault, place: Place) -> Child:
    """Returns a child that writes until it is killed, after it has written a step and then some time has passed."""
    child = Child(lambda tell: Writer(place, fault.setup).write(range(1, 10**6), tell))
    child.wait_for("kept:1" if fault.setup == "memory" else "done:1")
    time.sleep(0.1 * fault.moment)
    return child


def _kill(fault: Fault, place: Place, found: Found) -> None:
    child = _writing(fault, place)
    try:
        child.send(signal.SIGKILL)
        child.end(found)
        check(place, fault.setup, child, found)
    finally:
        child.close()


def _kill_at_the_start(fault: Fault, place: Place, found: Found) -> None:
    """Kills a process that opens the snapshots of the one before, which must stay as they are."""

    def open_again(tell: Callable[[str], None]) -> None:
        for what in ("kept", "done"):
            tell(f"{what}:{before.last(what)}")
        tell("begun:3")
        while True:
            Writer(place, fault.setup).close()

    before = Child(lambda tell: Writer(place, fault.setup).write(range(1, 4), tell))
    before.wait_for("done:3" if fault.setup == "disk" else "kept:3")
    before.end(found)
    child = Child(open_again)
    try:
        child.wait_for("begun:3")
        time.sleep(0.05 * fault.moment)
        child.send(signal.SIGKILL)
        child.end(found)
        check(place, fault.setup, child, found)
    finally:
        child.close()
        before.close()


def _stop(fault: Fault, place: Place, found: Found) -> None:
    """Stops the writer. Others must not take its files for those of a dead writer, nor use its memory."""
    child = _writing(fault, place)
    try:
        child.send(signal.SIGSTOP)
        if fault.setup != "memory":
            scratch = sorted(place.directory.glob(".tfdist-*/files"))
            step, _ = known.read_disk(place.directory, found)
            known.check_range("on disk", step, child.last("done"), child.last("begun"), found)
            gone = [str(path) for path in scratch if not path.exists()]
            found.check(not gone, f"a reader has removed files of a writer that lives: {gone}")
        if fault.setup.startswith("memory"):
            _check_memory_is_refused(place, found)
        if fault.where == "then SIGCONT":
            begun = child.last("begun")
            child.send(signal.SIGCONT)
            went_on = child.wait_for(f"begun:{begun + 2}")
            found.check(went_on, "the writer did not go on after SIGCONT", Trouble.HANG)
        child.send(signal.SIGKILL)
        child.end(found)
        check(place, fault.setup, child, found)
    finally:
        child.close()


def _check_memory_is_refused(place: Place, found: Found) -> None:
    try:
        MemoryTier(str(place.directory), worker=0, root=place.root).close()
        found.add(Trouble.WRONG, "a second process may use the memory of a process that lives")
    except ValueError as error:
        clear = "expected no other training in the directory" in str(error)
        found.check(clear, f"expected a clear refusal of the second process, received: {error}")


def _no_space(fault: Fault, place: Place, found: Found) -> None:
    """Fills the disk for a time. The writer goes on, and its last snapshot is complete."""

    def write(tell: Callable[[str], None]) -> None:
        # Within the three steps of six that are written next.
        first = int(fault.moment * _calls(place, fault.setup) / 2)
        writer = Writer(place, fault.setup)
        writer.write(range(1, 3), tell)
        if fault.where == "files are cut short":
            # The kernel writes the first bytes of a file, as on a full disk, and refuses the rest.
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(fault.moment * 4_000_000), limits[1]))
            writer.write(range(3, STEPS), tell)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        else:
            stock = {name: getattr(os, name) for name in killing.CALLS}
            for number in range(1 if fault.where == "one call fails" else 5):
                killing.at_call(first + number, killing.no_space)
            writer.write(range(3, STEPS), tell)
            for name, function in stock.items():
                setattr(os, name, function)
        writer.write(range(STEPS, STEPS + 1), tell)

    child = Child(write)
    try:
        child.end(found)
        found.check(child.code == 0, f"expected the writer to go on, received exit code {child.code}", Trouble.WRONG)
        kept = "kept" if fault.setup == "memory" else "done"
        found.check(child.last(kept) == STEPS, "the writer did not write its last step", Trouble.WRONG)
        check(place, fault.setup, child, found)
    finally:
        child.close()


def _damaged_file(fault: Fault, place: Place, found: Found) -> None:
    for step in range(1, STEPS + 1):
        known.write_disk(place.directory, step)
    newest = max(place.directory.glob("snapshot-*"))
    what = damage.damage(newest / fault.setup, fault.where, fault.moment)
    step, lines = known.read_disk(place.directory, found)
    found.end = f"{what}: step {step} is used"
    if step != STEPS:
        known.check_range(f"after it was {what}", step, STEPS - 1, STEPS - 1, found)
        says_so = any(f"{newest} is not used: " in line for line in lines)
        found.check(says_so, f"expected a line that {newest.name} is not used, received {lines}")
    elif fault.setup != NAME:
        found.add(Trouble.TORN, f"{what}, and the snapshot is used")
    known.check_next_writer(place.directory, STEPS + 1, found)


def _truncated_memory(fault: Fault, place: Place, found: Found) -> None:
    child = Child(lambda tell: Writer(place, "memory").write(range(1, STEPS + 1), tell))
    try:
        child.end(found)
        # The size and the number of the part in each slot, from the head of its bytes.
        heads = {path: struct.unpack_from("<QQ", path.read_bytes(), 24) for path in place.root.glob("*/slot-*")}
        newest = max(heads, key=lambda path: heads[path][1])
        found.end = damage.damage(newest, "truncated", fault.moment)
        expected = STEPS if newest.stat().st_size >= heads[newest][0] else STEPS - 1
        step = known.read_memory(place.directory, place.root, found)
        known.check_range(f"in memory after {found.end}", step, expected, expected, found)
        known.check_next_memory(place.directory, place.root, STEPS + 1, found)
    finally:
        child.close()


def _started_twice(fault: Fault, place: Place, found: Found) -> None:
    """Starts a second writer in the same directory: of memory it is refused, on disk each snapshot is complete."""
    first = _writing(fault, place)
    try:
        if fault.setup == "memory":
            _check_memory_is_refused(place, found)
            first.send(signal.SIGKILL)
            first.end(found)
            check(place, "memory", first, found)
            return
        second = Child(lambda tell: Writer(place, "disk").write(range(1, 40), tell))
        try:
            second.end(found)
            found.check(second.code == 0, f"the second writer ended with {second.code}", Trouble.WRONG)
            first.send(signal.SIGKILL)
            first.end(found)
            step, _ = known.read_disk(place.directory, found)
            found.check(step is not None, "there is no snapshot after two writers", Trouble.WRONG)
            found.end = f"step {step} on disk after two writers"
            known.check_next_writer(place.directory, 10**6, found)
        finally:
            second.close()
    finally:
        first.close()


def _read_while_written(fault: Fault, place: Place, found: Found) -> None:
    child = _writing(fault, place)
    try:
        for _ in range(10):
            least = child.last("done")
            step, _ = known.read_disk(place.directory, found)
            known.check_range("during a write", step, least, child.last("begun"), found)
        child.send(signal.SIGKILL)
        child.end(found)
        check(place, "disk", child, found)
    finally:
        child.close()


_ACTIONS: dict[str, Callable[[Fault, Place, Found], None]] = {
    "SIGKILL at a system call": _kill_at_a_call,
    "SIGKILL at any time": _kill,
    "SIGKILL at the start": _kill_at_the_start,
    "SIGSTOP": _stop,
    "no space": _no_space,
    "damaged file": _damaged_file,
    "truncated memory": _truncated_memory,
    "started twice": _started_twice,
    "read while it is written": _read_while_written,
}
