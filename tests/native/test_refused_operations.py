"""An operation that cannot be started fails in TensorFlow, and does not end its process."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.processes import run


def test_operations_with_wrong_arguments_or_without_memory_fail(tmp_path: Path, with_native: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.native.refused_operations"]
    ended = run(command, cwd=tmp_path, deadline_seconds=120.0, env=with_native)
    # TensorFlow names the kernel before each message.
    found = re.sub(r"\{\{function_node .*?\}\} ", "", ended.text)
    for expected in (
        "scalar: InvalidArgumentError: expected a value with a first dimension for all_gather, received a scalar",
        "ranks: InvalidArgumentError: expected all_gather of 2 ranks, received ranks=1",
        "peer below: InvalidArgumentError: expected a peer from 0 to 1, received -1",
        "peer above: InvalidArgumentError: expected a peer from 0 to 1, received 2",
        "kind: InvalidArgumentError: expected a kind from 1 to 6, received 9",
        "send: InvalidArgumentError: expected another rank as the peer, received 0, its own",
        "receive: InvalidArgumentError: expected another rank as the peer, received 0, its own",
        "memory: ResourceExhaustedError: there is no memory for the result of a collective operation",
        "after: started",
    ):
        assert expected in found
    assert ended.code == 0
