"""Says which messages of tfdist have no entry, and writes the page of all messages.

python -m tests.messages --write docs/troubleshooting.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.messages.entries import stale, unlisted
from tests.messages.page import page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.messages", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, help="document to write; without this option the check alone is made")
    arguments = parser.parse_args()
    for message in unlisted():
        print(f"{message.path}:{message.line}: no entry: {message.text}")
    for text in stale():
        print(f"no message has this text any more: {text}")
    if arguments.write:
        arguments.write.write_text(page())
    sys.exit(bool(unlisted() or stale()))


if __name__ == "__main__":
    main()
