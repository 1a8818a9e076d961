"""Two hosts of which one does not reach the other. It needs root and network namespaces."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from benchmarks.namespaces import hosts
from tests.doctor.clusters import DEADLINE_SECONDS, lines, tf_config
from tests.processes import ROOT

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"), reason="needs root and iproute2"
    ),
]


@pytest.mark.parametrize("blocked", [0, 1])
def test_the_blocked_direction_is_named(blocked, tmp_path):
    """Worker `blocked` does not reach the other one, which reaches it."""
    other = 1 - blocked
    with hosts(2, rate=None) as machines:
        jobs = {"worker": [f"{machine.address}:{2222 + index}" for index, machine in enumerate(machines)]}
        # Only requests to the port of the other task are lost, and not the replies to its requests.
        rule = ["ip", "rule", "add", "ipproto", "tcp", "dport", str(2222 + other), "table", "100"]
        for command in (rule, ["ip", "route", "add", "blackhole", "default", "table", "100"]):
            assert machines[blocked].popen(command).wait(DEADLINE_SECONDS) == 0
        files = [(tmp_path / f"{index}.out").open("w+") for index in range(2)]
        processes = [
            machine.popen(
                [sys.executable, "-m", "tfdist", "doctor", "--timeout-seconds", "15"],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CONFIG": tf_config(jobs, "worker", index)},
                stdout=files[index],
            )
            for index, machine in enumerate(machines)
        ]
        codes = [process.wait(DEADLINE_SECONDS) for process in processes]
    texts = [(tmp_path / f"{index}.out").read_text() for index in range(2)]
    print(*texts, json.dumps(jobs), sep="\n")
    failures = {(check, task): text for check, task, text in lines(texts[0], "fail")}
    text = failures.pop(("reach", f"worker {blocked}"))
    assert f"does not reach worker {other} at {jobs['worker'][other]}" in text
    assert f"but worker {other} reaches it" in text
    assert not failures
    assert ("reach", f"worker {other}", "reaches 1 task") in lines(texts[0], "pass")
    assert codes == ([1, 1] if blocked == 1 else [1, 0])
