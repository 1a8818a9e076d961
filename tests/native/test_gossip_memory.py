"""What a replica has sent to a peer is not kept."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.processes import launch


def test_steps_of_gossip_keep_nothing_of_what_they_have_sent(tmp_path: Path, with_native: dict[str, str]) -> None:
    command = ["--workers", "2", "--", sys.executable, "-m", "tests.native.gossip_memory"]
    ended = launch(*command, cwd=tmp_path, deadline_seconds=180.0, env=with_native)
    assert ended.code == 0, ended
    grown = [int(found) for found in re.findall(r"grown by (-?\d+) MB", ended.text)]
    assert len(grown) == 2
    # Each step sends 23 MB.
    assert max(grown) < 30 * 23 / 2
