"""Slurm itself runs a rendered script, and queues it again after exit code 75."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cluster.environments import slurm_cluster
from tfdist.render import Job, render

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=f"Slurm cannot run: {slurm_cluster.missing()}"),
]
NODES = ["n8", "n9"]
# The first start ends with exit code 75, at once or after SIGTERM, and the second one succeeds.
PROGRAM = """
    import os, signal, sys, time
    from tfdist.cluster import ClusterConfig
    from tfdist.cluster.launched import launched

    cluster, start = ClusterConfig.detect(), launched()
    print("TASK", start.attempt, cluster.task_index, ",".join(cluster.jobs["worker"]), cluster.source, sys.argv[1:],
          flush=True)
    if start.attempt == 0 and "wait" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
        time.sleep(300)
    if start.attempt == 0 and cluster.task_index == int(sys.argv[1]):
        sys.exit(int(sys.argv[2]))
"""
# A job that ends is COMPLETED or FAILED; one that is queued again is PENDING for a while.
WAIT = """
id=$(sbatch --parsable job.sbatch)
for _ in $(seq 1 600); do
  state=$(scontrol show job "$id" -o | grep -o 'JobState=[A-Z]*' || true)
  case $state in JobState=COMPLETED | JobState=FAILED | JobState=TIMEOUT | JobState=CANCELLED) break ;; esac
  {action}
  sleep 0.5
done
scontrol show job "$id"
cat ./*.log
"""


def run_job(job: Job, tmp_path: Path, free_ports, *, deadline_seconds: float, action: str = ":") -> str:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "job.sbatch").write_text(render("slurm", job, setup=["export TF_CPP_MIN_LOG_LEVEL=2"]))
    folder = tmp_path / "slurm"
    folder.mkdir()
    command = f"cd {shlex.quote(str(tmp_path))}\n{WAIT.replace('{action}', action)}"
    ended = slurm_cluster.srun(
        command,
        nodes="n[8-9]",
        names=NODES,
        ports=[free_ports(1)[0], 17018],
        folder=folder,
        deadline_seconds=deadline_seconds,
    )
    assert ended.code == 0
    return ended.text


def job_with(*arguments: str, **fields) -> Job:
    command = (sys.executable, "program.py", *arguments)
    return Job(command=command, name="digits", nodes=2, grace_seconds=60, env={"WORDS": "a 'b' $c"}, **fields)


def tasks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^TASK (\d+) (\d+) n8:\d+,n9:\d+ Slurm ", text, re.M)


def test_a_job_that_ends_with_75_is_queued_again_and_succeeds(tmp_path, free_ports):
    text = run_job(job_with("1", "75", "two words"), tmp_path, free_ports, deadline_seconds=300)
    assert sorted(tasks(text)) == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert re.search(r"JobState=COMPLETED .*Restarts=1 ", text, re.S)
    assert text.count("is queued again") == 1 and "'two words'" in text


def test_a_job_that_fails_otherwise_is_not_queued_again(tmp_path, free_ports):
    text = run_job(job_with("0", "3"), tmp_path, free_ports, deadline_seconds=120)
    assert sorted(tasks(text)) == [("0", "0"), ("0", "1")]
    assert re.search(r"JobState=FAILED .*Restarts=0 .*ExitCode=3:0", text, re.S)


def test_the_tasks_receive_sigterm_before_the_end_of_the_time(tmp_path, free_ports):
    text = run_job(job_with("0", "1", "wait", seconds=120), tmp_path, free_ports, deadline_seconds=400)
    assert sorted(tasks(text)) == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert re.search(r"JobState=COMPLETED .*Restarts=1 ", text, re.S)


def test_a_cancelled_job_is_not_queued_again(tmp_path, free_ports):
    cancel = 'if grep -q TASK ./*.log 2>/dev/null; then scancel "$id"; fi'
    text = run_job(job_with("0", "1", "wait"), tmp_path, free_ports, deadline_seconds=120, action=cancel)
    assert sorted(tasks(text)) == [("0", "0"), ("0", "1")]
    assert re.search(r"JobState=CANCELLED .*Restarts=0 ", text, re.S)
