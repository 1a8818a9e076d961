"""Parts of documents that programs write, between two marks: `<!-- mends: begin -->` and `<!-- mends: end -->`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path


def between_marks(text: str, mark: str, part: str) -> str:
    """Returns a document with a new text between the two comments of a mark.

    Example:
        >>> between_marks("a <!-- x: begin -->old<!-- x: end --> b", "x", "new")
        'a <!-- x: begin -->\\nnew\\n<!-- x: end --> b'
    """
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    found = re.findall(f"{begin}.*?{end}", text, re.S)
    assert len(found) == 1, f"expected {begin} ... {end} once, received it {len(found)} times"
    return text.replace(found[0], f"{begin}\n{part}\n{end}")


def main(*, prog: str, description: str | None, mark: str, part: Callable[[], str]) -> None:
    """Prints a part, or writes it into a document: the command line of a program that makes one part."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--write", type=Path, help="document to write; without this option the part is printed")
    document = parser.parse_args().write
    if document is None:
        print(part())
    else:
        document.write_text(between_marks(document.read_text(), mark, part()))
