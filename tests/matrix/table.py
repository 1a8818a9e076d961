"""The table of docs/versions.md: for each pair, the worst result of each kind of row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.matrix.pairs import Pair

# From the best to the worst. A pair may be in the bounds of pyproject.toml only without the last three.
WORDS = {"n/a": "-", "pass": "right", "refuses": "refused", "raises": "fails", "wrong": "wrong", "hangs": "hang"}
BAD = ("raises", "wrong", "hangs")
Result = Mapping[str, Any]


def words_of(result: Result, names: tuple[str, ...]) -> list[str]:
    """Returns the words of the cells of some cases on every topology."""
    return [cells[name]["word"] for cells in result["cells"].values() for name in names]


def said(words: list[str]) -> str:
    """Returns the text of a cell of the table.

    >>> said(["pass", "pass"]), said(["pass", "refuses"]), said(["pass", "wrong", "pass"]), said(["n/a", "n/a"])
    ('right', 'right, 1 refused', '1 wrong', '-')
    """
    bad = [f"{words.count(word)} {WORDS[word]}" for word in BAD if word in words]
    if bad:
        return ", ".join(bad)
    refused = words.count("refuses")
    if "pass" not in words:
        return "refused" if refused else "-"
    return f"right, {refused} refused" if refused else "right"


def is_good(result: Result) -> bool:
    """Returns whether no cell is wrong, fails or hangs, and every canary says what the release has."""
    words = [cell["word"] for cells in result["cells"].values() for cell in cells.values()]
    return bool(words) and not set(words) & set(BAD) and not result["canaries"]["failed"]


def canaries_of(result: Result) -> str:
    """Returns the text about the canaries of a pair."""
    passed, failed = result["canaries"]["passed"], len(result["canaries"]["failed"])
    return f"{passed} pass" if not failed else f"{passed} pass, {failed} fail"


def table(results: Mapping[Pair, Result], rows: Mapping[str, tuple[str, ...]]) -> str:
    """Returns the table of all pairs, and the refusals below it.

    Args:
        results: the result of each pair.
        rows: the names of the cases of each kind of row.
    """
    lines = [
        f"| TensorFlow | Keras | {' | '.join(rows)} | canaries |",
        "| --- | --- |" + " --- |" * (len(rows) + 1),
    ]
    for pair, result in results.items():
        keras, tensorflow = (part.split()[1] for part in result["versions"].split(", ")[:2])
        name = f"tf_keras {keras}" if pair.is_tf_keras else keras
        parts = [said(words_of(result, names)) for names in rows.values()]
        lines.append(f"| {tensorflow} | {name} | {' | '.join(parts)} | {canaries_of(result)} |")
    return "\n".join([*lines, "", *_refusals(results), *_counts(results)])


def _refusals(results: Mapping[Pair, Result]) -> list[str]:
    found: dict[str, set[str]] = {}
    for pair, result in results.items():
        for cells in result["cells"].values():
            for cell in cells.values():
                if cell["word"] == "refuses":
                    sentence = cell["detail"].splitlines()[0].removeprefix("ValueError: ")
                    found.setdefault(sentence, set()).add(pair.name)
    return [f"- refused on {', '.join(sorted(pairs))}: “{sentence}”" for sentence, pairs in found.items()]


def _counts(results: Mapping[Pair, Result]) -> list[str]:
    words = [c["word"] for result in results.values() for cells in result["cells"].values() for c in cells.values()]
    counts = ", ".join(f"{words.count(word)} {text}" for word, text in WORDS.items() if word != "n/a")
    return [f"{len(results)} pairs, {len(words) - words.count('n/a')} cells: {counts}."]
