"""Tables of documents that benchmarks write, between the marks `<!-- tables: begin -->` and `<!-- tables: end -->`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.generated import between_marks


def replace_tables(path: Path, text: str) -> None:
    """Replaces the tables of a document.

    Args:
        path: the document, which has both marks once.
        text: the new tables, in Markdown.
    """
    path.write_text(between_marks(path.read_text(), "tables", text))
