"""Runs programs under one strategy: python -m tests.allreduce.programs STRATEGY FOLDER PROGRAM...

Each process writes what a program has found on its replicas to FOLDER/PROGRAM-WORKER.json.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import tfdist
from tfdist.workers import worker_index


def main() -> None:
    kind, folder, *names = sys.argv[1:]
    strategy = tfdist.create_strategy(kind, **({"devices": 2} if kind == "mirrored" else {}))
    for name in names:
        program = importlib.import_module(f"tests.allreduce.programs.{name}")
        found = program.run(strategy, Path(folder))
        Path(folder, f"{name}-{worker_index(strategy)}.json").write_text(json.dumps(found))


main()
