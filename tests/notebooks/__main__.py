"""Executes the .py file of a notebook, and writes the .ipynb file beside it with its outputs.

    python -m tests.notebooks 01_first_distributed_model
    python -m tests.notebooks

Without names, all notebooks are executed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import nbformat

from tests.notebooks.execution import FOLDER, NAMES, execute, from_script


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.notebooks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; none: all")
    for name in parser.parse_args().names or NAMES:
        path, started = FOLDER / f"{Path(name).stem}.ipynb", time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(from_script(path.stem), Path(folder))
        for cell in notebook.cells:
            # What stderr shows is the log, which differs from machine to machine.
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        # The name of the kernel is enough; the version of Python would differ with each writer.
        notebook.metadata.pop("language_info", None)
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.monotonic() - started:.0f} s, {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
