"""Tables of documents that benchmarks write: what stands between `<!-- tables -->` and `<!-- end of tables -->`."""

from __future__ import annotations

from pathlib import Path

BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->\n"


def replace_tables(path: Path, text: str) -> None:
    """Replaces the tables of a document.

    Args:
        path: the document, which has both marks.
        text: the new tables, in Markdown.
    """
    before, rest = path.read_text().split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}{text.rstrip()}\n{END}{after}")
