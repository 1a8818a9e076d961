"""The benchmarks `tfdist bench allreduce`, `tfdist bench input` and `tfdist bench optimizer`.

`BENCHMARKS` has the name of each benchmark, and what it measures.

Example:
    >>> from tfdist.bench import BENCHMARKS
    >>> sorted(BENCHMARKS)
    ['allreduce', 'input', 'optimizer']
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tfdist._suggestions import did_you_mean

__all__ = ["BENCHMARKS", "main"]

BENCHMARKS = {
    "allreduce": "time, bandwidth and bytes of summing gradients over replicas",
    "input": "records per second, stalls, and the bytes that input pipelines read",
    "optimizer": "time of a step of each optimizer, compared with the memory bandwidth",
}


def main(argv: Sequence[str]) -> int:
    """Runs `tfdist bench NAME ...` and returns its exit code.

    Args:
        argv: command-line arguments after `tfdist bench`.

    Example:
        >>> from tfdist.bench import main
        >>> main(["--help"]).__class__
        usage: tfdist bench NAME ...
        ...
        <class 'int'>
    """
    if not argv or argv[0] in ("--help", "-h"):
        rows = "\n".join(f"  {name:<11}{description}" for name, description in BENCHMARKS.items())
        print(
            f"usage: tfdist bench NAME ...\n\nbenchmarks:\n{rows}\n\n`tfdist bench NAME --help` lists the options of a "
            "benchmark."
        )
        return 0 if argv else 2
    if argv[0] not in BENCHMARKS:
        print(
            f"tfdist bench: expected one of the benchmarks {', '.join(BENCHMARKS)}, received {argv[0]!r}; "
            f"{did_you_mean(argv[0], BENCHMARKS)}"
            "`tfdist bench --help` lists them.",
            file=sys.stderr,
        )
        return 2
    return int(importlib.import_module(f"tfdist.bench.{argv[0]}").main(list(argv[1:])) or 0)
