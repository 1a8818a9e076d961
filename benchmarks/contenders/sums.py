"""What the programs that sum arrays have in common: which sizes, how often, and the result."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 60.0


def wait_for(path: Path) -> bytes:
    """Returns the content of a file that another rank writes."""
    until = time.monotonic() + DEADLINE_SECONDS
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"expected {path}")
        time.sleep(0.005)
    return path.read_bytes()


def runs_of(size: int) -> tuple[int, int]:
    """Returns how many sums of a size are timed, and how many there are before them."""
    timed = max(7, min(1000, 300_000_000 // max(size, 100_000)))
    return timed, timed // 5 + 1


def processor_seconds() -> dict[str, float]:
    """Returns how long each thread of this process has run on a processor."""
    found = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            found[path.parent.name] = int(path.read_text().split()[0]) / 1e9
    return found


def measure(rank: int, ranks: int, sizes: Sequence[str], make: Callable[[int], tuple[Callable[[], Any], Any]]) -> None:
    """Prints the median time of a sum of each size on rank 0, and the processor time of its busiest thread.

    Args:
        rank: the own rank.
        ranks: the number of ranks.
        sizes: bytes of the arrays of float32, as texts.
        make: takes a number of elements; returns what sums arrays of ones, and what returns the last sum.
    """
    times, busiest = {}, {}
    for text in sizes:
        size = int(text)
        step, result = make(size // 4)
        step()
        assert float(result()[0]) == float(result()[-1]) == ranks
        runs, before = runs_of(size)
        for _ in range(before - 1):
            step()
        taken, at_first = [], processor_seconds()
        for _ in range(runs):
            begin = time.perf_counter()
            step()
            taken.append(time.perf_counter() - begin)
        times[text] = statistics.median(taken)
        used = [seconds - at_first.get(thread, 0.0) for thread, seconds in processor_seconds().items()]
        busiest[text] = max(used) / runs
    if rank == 0:
        print("RESULT", json.dumps({"times": times, "busiest": busiest}), flush=True)
