"""Makes the folder for the results of a benchmark before anything is measured."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path


def make_results_folder(parser: argparse.ArgumentParser, folder: Path) -> None:
    """Makes a folder for results, and ends the program with a message if no file can be written to it.

    Args:
        parser: parser of the command; the message begins with the name of the command.
        folder: the folder, which may exist.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        parser.exit(
            2,
            f"{parser.prog}: expected --output to be a folder that can be written, received {folder} ({reason}); give "
            "another.\n",
        )
