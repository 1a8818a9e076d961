"""Runs a program of tests/end_to_end/public_programs on tfdist's strategy: public.py NAME."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import tfdist

strategy = tfdist.create_strategy()

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    importlib.import_module(f"tests.end_to_end.public_programs.{sys.argv[1]}").run(strategy)
