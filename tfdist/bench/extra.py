"""Checks that the packages of the extra `bench` are installed, before a benchmark measures anything."""

from __future__ import annotations

import argparse
import importlib.util


def require(parser: argparse.ArgumentParser, *modules: str) -> None:
    """Ends the program with a message if a package of the extra `bench` is missing.

    Args:
        parser: parser of the command; the message begins with the name of the command.
        *modules: names of the modules that the benchmark imports later.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        noun = "package" if len(missing) == 1 else "packages"
        parser.exit(
            2,
            f"{parser.prog}: expected the {noun} {' and '.join(missing)} to be installed, found none; "
            "run pip install '.[bench]' in a checkout of tfdist.\n",
        )
