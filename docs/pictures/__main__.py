"""Writes all pictures: python -m docs.pictures, or python -m docs.pictures --output FOLDER."""

from __future__ import annotations

import argparse
from pathlib import Path

from docs.pictures import cluster, conformance, packs, reading, step
from docs.pictures.style import save

PICTURES = (cluster, step, reading, packs, conformance)


def main() -> None:
    """Draws each picture from its data, and writes the data into the file, where a test reads them."""
    parser = argparse.ArgumentParser(prog="python -m docs.pictures", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder of the SVG files")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        data = picture.data()
        save(picture.draw(data), output / f"{picture.__name__.rpartition('.')[2]}.svg", data)


if __name__ == "__main__":
    main()
