"""Runs the core of the conformance suite and the canaries on pairs of TensorFlow and Keras.

Without names all pairs are run, which takes hours. The environments and the results are in build/matrix; a result is
used again until the code changes. --write writes the table of docs/versions.md and needs the results of all pairs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from tests.generated import between_marks
from tests.matrix.environments import made
from tests.matrix.pairs import Pair, named
from tests.matrix.rows import ROWS
from tests.matrix.running import run_in
from tests.matrix.table import BAD, is_good, table, words_of
from tests.processes import ROOT

PAIR_SECONDS = 2700
FOLDER = ROOT / "build" / "matrix"


def fingerprint() -> str:
    """Returns a hash of the code on which the results depend."""
    digest = hashlib.sha256()
    for folder in ("tfdist", "tests/conformance", "tests/canaries", "tests/matrix"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name not in ("table.py", "native.py", "__main__.py"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def result_of(pair: Pair, *, keep: bool, processes: int) -> dict[str, Any]:
    """Returns the result of a pair, which is measured unless there is one of the present code.

    Args:
        pair: the pair.
        keep: whether to keep the environment.
        processes: number of clusters, and of tests, at a time.

    Raises:
        RuntimeError: if the environment cannot be made, or the pair gives no result within its deadline.
    """
    path = FOLDER / "results" / fingerprint() / f"{pair.name}.json"
    if path.exists():
        return json.loads(path.read_text())
    began = time.monotonic()
    python = made(pair, FOLDER / "environments")
    print(f"{pair.name}: installed in {time.monotonic() - began:.0f} s", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".log")
    command = ["-m", "tests.matrix.core", str(path), str(processes)]
    run_in(pair, python, *command, log=log, deadline_seconds=PAIR_SECONDS)
    if not path.exists():
        raise RuntimeError(f"{pair.name}: no result within {PAIR_SECONDS} s:\n{log.read_text()[-6000:]}")
    if not keep:
        shutil.rmtree(python.parents[1])
    return json.loads(path.read_text())


def report(pair: Pair, result: dict[str, Any]) -> None:
    """Prints the result of a pair: one line, and one for each cell or canary that is not right."""
    words = [word for names in ROWS.values() for word in words_of(result, names)]
    counts = ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))
    canaries = result["canaries"]
    print(f"{pair.name}: {result['versions']}: {counts}; {canaries['passed']} canaries; {result['seconds']:.0f} s")
    for topology, cells in result["cells"].items():
        for name, cell in cells.items():
            if cell["word"] in BAD:
                print(f"  {topology}, {name}: {cell['word']} {cell['size']:.2g}: {cell['detail'][:600]}")
    for name in canaries["failed"]:
        print(f"  canary: {name}")
    sys.stdout.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help="such as 2.20-3.12 or 2.20-tf_keras")
    parser.add_argument("--write", type=Path, help="document whose table to write, such as docs/versions.md")
    parser.add_argument("--remove", action="store_true", help="remove each environment after its measurement")
    parser.add_argument("--processes", type=int, default=2, help="number of clusters, and of tests, at a time")
    arguments = parser.parse_args()
    try:
        pairs = named(arguments.pairs)
    except ValueError as error:
        parser.error(str(error))
    results = {}
    for pair in pairs:
        results[pair] = result_of(pair, keep=not arguments.remove, processes=arguments.processes)
        report(pair, results[pair])
    if arguments.write:
        arguments.write.write_text(between_marks(arguments.write.read_text(), "matrix", table(results, ROWS)))
    if not all(map(is_good, results.values())):
        sys.exit(1)


if __name__ == "__main__":
    main()
