"""Finds the messages in the C++ sources of tfdist-native: the texts of each statement, joined."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# A text, what is left out (comments, lines of the preprocessor, characters), the end of a statement, or anything else.
_TOKEN = re.compile(
    r'"(?P<text>(?:[^"\\\n]|\\.)*)"|//[^\n]*|^#[^\n]*|\'(?P<letter>[^\'])\'|\'[^\']+\'|(?P<end>[;{}])|(?P<value>\w+)',
    re.MULTILINE,
)
_LEAST_WORDS = 3


def native_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each message of a file; values between texts are written as <value>."""
    parts: list[str] = []
    line = 0
    source = path.read_text()
    for found in _TOKEN.finditer(source):
        if found["text"] is not None:
            if not parts:
                line = source.count("\n", 0, found.start()) + 1
                # Of what comes before the first text, only what is joined to it is a part of the message.
                parts += ["<value>"] if source[: found.start()].rstrip().endswith("+") else []
            parts.append(found["text"])
        elif found["letter"] and parts:
            parts.append(found["letter"])
        elif found["value"] and parts and parts[-1] != "<value>":
            parts.append("<value>")
        elif found["end"]:
            text = "".join(parts)
            words = re.findall(r"<value>|[A-Za-z]+", text)
            if len(words) >= _LEAST_WORDS and set(words) != {"<value>"} and " " in text:
                yield line, text
            parts = []
