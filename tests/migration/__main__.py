"""Writes the generated parts of the migration guides in docs: python -m tests.migration."""

from __future__ import annotations

import argparse

from tests.migration import pages, stock_cells


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.migration", description=__doc__)
    parser.add_argument(
        "--addons-python",
        metavar="PATH",
        help="interpreter of an environment with the extra 'addons': measures stock Keras 2.15 before",
    )
    arguments = parser.parse_args()
    if arguments.addons_python:
        stock_cells.measure_keras_2_15(arguments.addons_python)
    for path in pages.PAGES:
        path.write_text(pages.written(path, path.read_text()))


if __name__ == "__main__":
    main()
