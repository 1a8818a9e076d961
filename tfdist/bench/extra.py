"""What the benchmarks need beyond the library, missed before they measure and not after."""

from __future__ import annotations

import argparse
import importlib.util


def require(parser: argparse.ArgumentParser, *modules: str) -> None:
    """Ends the program with a sentence if a module of the extra `bench` is missing.

    Args:
        parser: of the command.
        *modules: that it will import.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        parser.exit(2, f"{parser.prog}: expected {' and '.join(missing)}, found none; pip install 'tfdist[bench]'.\n")
