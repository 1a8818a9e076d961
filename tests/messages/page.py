"""Writes docs/troubleshooting.md from the source, the entries and the lists."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from tests.messages.entries import SUBJECTS, Entry, advice, self_explaining, upstream

HEAD = """\
# What does this message mean?

Search this page for three or four words of your message, without the numbers, names and paths in it. `<name>` stands
for a value, `[one | other]` for one of two texts, and `[text]` for a text that may be missing. The first lines of a
failure matter most: other workers fail as a consequence of the first one. `tfdist launch` shows the traceback of the
task that failed first; the complete output of every task is in the log files that it names.

Errors of tfdist have one form: expected this, received that; do this. Messages that say themselves what to do are
[listed at the end](#which-messages-say-themselves-what-to-do), by subject.
"""
LISTED = """\
## Which messages say themselves what to do?

These messages name the option or field, the values that it takes, and the value that was received. A message of
`tfdist doctor` has two parts: what was found, and what to do.
"""


def code(text: str) -> str:
    """Returns a text as code of Markdown."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def anchor(title: str) -> str:
    """Returns the anchor of a heading."""
    return re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-")


def wrapped(text: str) -> str:
    """Returns a paragraph in lines of the width of the documents."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def paragraphs(text: str) -> str:
    """Returns paragraphs in lines; tables keep theirs."""
    blocks = text.strip().split("\n\n")
    return "\n\n".join(block.strip() if block.startswith("|") else wrapped(block) for block in blocks)


def section(entry: Entry) -> str:
    """Returns the section of an entry."""
    lines = [f"### {entry.title}", "", *(f"- {code(text)}" for text in entry.shown()), ""]
    lines += [paragraphs(f"**Cause.** {entry.means}"), ""]
    if entry.tfdist:
        lines += [paragraphs(f"**What tfdist does.** {entry.tfdist}"), ""]
    return "\n".join([*lines, paragraphs(f"**What to do.** {entry.do}"), ""])


def index(groups: dict[str, list[Entry]]) -> str:
    """Returns the links to all entries."""
    lines = ["| subject | symptoms |", "| --- | --- |"]
    for subject, entries in groups.items():
        links = "; ".join(f"[{entry.title}](#{anchor(entry.title)})" for entry in entries)
        lines.append(f"| [{subject}](#{anchor(subject)}) | {links} |")
    return "\n".join([*lines, ""])


def grouped(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Returns the entries by subject, in the order of the headings."""
    groups: dict[str, list[Entry]] = {subject: [] for subject in order()}
    for entry in entries:
        groups[entry.subject].append(entry)
    return {subject: found for subject, found in groups.items() if found}


def order() -> list[str]:
    """Returns the headings in the order of the page."""
    first = "Cluster and TF_CONFIG"
    return [first, *(subject for subject in SUBJECTS if subject != first), upstream()[0].subject]


def page() -> str:
    """Returns the text of docs/troubleshooting.md."""
    groups = grouped((*advice(), *upstream()))
    parts = [HEAD, index(groups)]
    for subject, entries in groups.items():
        parts += [f"## {subject}\n", *map(section, entries)]
    parts.append(LISTED)
    listed = self_explaining()
    for subject in (subject for subject in order() if subject in listed):
        parts.append("\n".join([f"**{subject}**", "", *(f"- {code(text)}" for text in listed[subject]), ""]))
    return "\n".join(parts)
