"""benchmarks/chaos.py with a small fixed seed, and what its checks find when something is wrong."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks import chaos
from benchmarks.chaos_faults import job as jobs
from benchmarks.chaos_faults import known, launcher, links, task, training
from benchmarks.chaos_faults.fault import Fault, Found, Trouble, draw
from tests.processes import ROOT, run
from tfdist.checkpoint.disk import DiskTier

DEADLINE_SECONDS = 400


# The kernel kills a task with its launcher, but not the child of a task.
_LEAVES_A_CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
"""


def troubles(found: Found) -> set[Trouble]:
    print(found.troubles)
    return {trouble for trouble, _ in found.troubles}


@pytest.mark.parametrize(("level", "faults"), [pytest.param("writer", 36, marks=pytest.mark.full), ("launcher", 10)])
def test_a_small_number_of_faults_ends_well(level, faults, tmp_path):
    output, folder = tmp_path / "faults.jsonl", tmp_path / "folder"
    options = ["--level", level, "--faults", str(faults), "--seed", "3", "--output", str(output)]
    command = [sys.executable, str(ROOT / "benchmarks" / "chaos.py"), *options, "--folder", str(folder)]
    end = run(command, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS)
    assert end.code == 0
    made = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["number"] for one in made] == list(range(faults))
    assert {one["kind"] for one in made} == {kind.name for kind in chaos.LEVELS[level].KINDS}
    assert not any(one["troubles"] for one in made)
    assert f"{faults} faults, 0 failed" in end.text
    assert list(folder.iterdir()) == []


def test_a_fault_depends_on_its_seed_level_and_number_only():
    kinds = training.KINDS
    faults = [draw("training", number, 1, kinds) for number in range(50)]
    assert faults == [draw("training", number, 1, kinds) for number in range(50)]
    assert faults != [draw("training", number, 2, kinds) for number in range(50)]
    assert {fault.kind for fault in faults} == {kind.name for kind in kinds}
    assert {fault.kind for fault in faults} - set(training._ACTIONS) <= {"link cut"}
    assert "link cut" in {fault.kind for fault in faults} or not links.available()


def test_the_levels_share_the_faults():
    assert chaos.shared_out(1003, list(chaos.LEVELS)) == {"writer": 703, "launcher": 200, "training": 100}


def test_a_snapshot_with_the_values_of_another_step_is_torn(tmp_path):
    parts = {f"worker-{worker}": known.bytes_of(known.part_of(4, worker)) for worker in range(known.WORKERS)}
    stale = dataclasses.replace(known.part_of(4, 1), step=5)
    tier = DiskTier(tmp_path, keep=2)
    tier.write(4, parts, model=known.MODEL)
    found = Found()
    assert known.read_disk(tmp_path, found) == (4, [])
    assert troubles(found) == set()
    new = {"worker-0": known.bytes_of(known.part_of(5, 0)), "worker-1": known.bytes_of(stale)}
    tier.write(5, new, model=known.MODEL)
    known.read_disk(tmp_path, found)
    assert troubles(found) == {Trouble.TORN}


def test_a_lost_snapshot_and_files_that_stay_are_found(tmp_path):
    known.write_disk(tmp_path, 1)
    found = Found()
    known.check_range("on disk", 1, 2, 3, found)
    assert troubles(found) == {Trouble.WRONG}
    found = Found()
    known.check_next_writer(tmp_path, 2, found)
    assert troubles(found) == set()
    # A writer that lives keeps its folder.
    scratch = tmp_path / ".tfdist-other"
    (scratch / "files").mkdir(parents=True)
    with (scratch / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known.check_next_writer(tmp_path, 4, found)
    assert troubles(found) == {Trouble.OTHER}


def test_a_hang_and_an_orphan_are_found_and_nothing_lives_on(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "ORPHAN_SECONDS", 1.0)
    (tmp_path / "task.py").write_text(_LEAVES_A_CHILD)
    found = Found()
    job = jobs.Job(tmp_path, ["--workers", "1"], [str(tmp_path / "task.py")], deadline_seconds=5.0)
    try:
        job.start()
        assert job.find_task("worker 0") is not None
        job.end(found)
        assert troubles(found) == {Trouble.HANG}
        assert job.processes() == []
        found = Found()
        job.start()
        assert job.find(lambda process: "import time; time.sleep(600)" in process.words) is not None
        guard = job.find(lambda process: process.is_guard)
        assert guard is not None
        # The launcher, which would start another guard, is stopped.
        os.kill(job.launcher.pid, signal.SIGSTOP)
        guard.send(signal.SIGKILL)
        job.kill_launcher()
        job.check_no_orphans(found)
        assert troubles(found) == {Trouble.ORPHAN}
        assert job.processes() == []
    finally:
        job.kill_all()


@pytest.mark.parametrize("state", ["right", "wrong", "missing"])
def test_a_wrong_result_of_a_task_is_found(state, tmp_path):
    found = Found()
    for worker in range(launcher.WORKERS):
        steps = launcher.STEPS - (state == "wrong" and worker == 1)
        if state != "missing":
            (tmp_path / f"result-{worker}").write_bytes(task.state_after(worker, steps).tobytes())
    launcher._check(jobs.Job(tmp_path, [], [], deadline_seconds=1.0), found)
    assert troubles(found) == (set() if state == "right" else {Trouble.WRONG})


def test_a_failed_fault_keeps_its_folder_and_names_the_command_that_repeats_it(tmp_path, monkeypatch, capsys):
    def fail(fault: Fault, folder: Path) -> Found:
        found = Found()
        (folder / "file").touch()
        if fault.number == 1:
            found.add(Trouble.TORN, "a snapshot was torn")
        return found

    monkeypatch.setattr(chaos.writer, "run", fail)
    assert chaos.main(["--faults", "3", "--seed", "7", "--level", "writer", "--folder", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "FAILED, torn: a snapshot was torn" in text
    assert "python benchmarks/chaos.py --seed 7 --only writer:1" in " ".join(text.split())
    assert [path.name for path in tmp_path.iterdir()] == ["writer-1"]
    assert chaos.main(["--seed", "7", "--only", "writer:0", "--folder", str(tmp_path)]) == 0


@pytest.mark.parametrize("options", [["--only", "writer"], ["--only", "disk:1"], ["--faults", "0"], ["--level", "x"]])
def test_a_mistaken_option_is_refused(options):
    with pytest.raises(SystemExit) as ended:
        chaos.main(options)
    assert ended.value.code == 2
