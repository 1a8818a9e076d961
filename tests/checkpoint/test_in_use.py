"""InUse: who may use a directory of snapshots, for processes of this host, of other hosts, and of dead ones."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tfdist.checkpoint import in_use
from tfdist.checkpoint.in_use import NAME, InUse, Owner

DEADLINE_SECONDS = 30.0
HOLDER = """
import sys, time
from tfdist.checkpoint.in_use import InUse
InUse(sys.argv[1]).begin()
print("begun", flush=True)
time.sleep(600)
"""


def note_of_another_host(directory: Path, *, number: int = 0, token: str = "theirs") -> None:
    owner = dataclasses.replace(Owner.of_this_process(), token=token, host="host7", machine="another boot", process=11)
    (directory / NAME).write_text(json.dumps({**dataclasses.asdict(owner), "number": number}).ljust(512))


def fast(directory: Path) -> InUse:
    return InUse(str(directory), renewal_seconds=0.05, silent_seconds=0.6)


def wait_until(is_so) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"begun\n"
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_SECONDS)
        process.stdout.close()


def test_a_directory_that_is_given_free_has_no_note(tmp_path):
    one = fast(tmp_path)
    one.begin()
    assert (tmp_path / NAME).exists()
    one.end()
    one.end()
    assert os.listdir(tmp_path) == []
    fast(tmp_path).begin()


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_a_second_training_is_refused_while_a_process_of_this_host_lives(state, holder, tmp_path):
    if state == "stopped":
        os.kill(holder.pid, signal.SIGSTOP)
    message = rf"received one on this host \(process {holder.pid}\) that still runs; wait for its end, or choose"
    with pytest.raises(ValueError, match=message):
        InUse(str(tmp_path)).begin()


@pytest.mark.parametrize("is_reaped", [True, False])
def test_a_process_of_this_host_that_was_killed_is_not_waited_for(is_reaped, holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    if is_reaped:
        holder.wait(DEADLINE_SECONDS)
    else:
        wait_until(lambda: Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    begun = time.monotonic()
    one = InUse(str(tmp_path), silent_seconds=600.0)
    one.begin()
    assert time.monotonic() - begun < 10
    one.check()
    one.end()


def test_a_number_of_a_process_that_another_process_has_now_is_not_its_owner(tmp_path):
    owner = dataclasses.replace(Owner.of_this_process(), started=1)
    (tmp_path / NAME).write_text(json.dumps({**dataclasses.asdict(owner), "number": 0}))
    fast(tmp_path).begin()


def test_a_training_on_another_host_that_renews_its_note_is_named(tmp_path):
    ended = threading.Event()

    def renew() -> None:
        for number in range(1000):
            note_of_another_host(tmp_path, number=number)
            if ended.wait(0.05):
                return

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        wait_until((tmp_path / NAME).exists)
        with pytest.raises(ValueError, match=r"received one on host host7 \(process 11\) that still runs"):
            InUse(str(tmp_path), silent_seconds=DEADLINE_SECONDS).begin()
    finally:
        ended.set()
        thread.join()


def test_a_training_on_another_host_that_is_silent_counts_as_dead(tmp_path, caplog):
    note_of_another_host(tmp_path)
    one = fast(tmp_path)
    with caplog.at_level("INFO", logger="tfdist"):
        one.begin()
    assert "has the note of a training on host host7 (process 11); waiting up to 0.6 s for a sign" in caplog.text
    with pytest.raises(ValueError, match="received one on this host"):
        fast(tmp_path).begin()
    one.end()


def test_a_training_on_another_host_that_ends_meanwhile_is_not_refused(tmp_path):
    note_of_another_host(tmp_path)
    timer = threading.Timer(0.2, (tmp_path / NAME).unlink)
    timer.start()
    begun = time.monotonic()
    InUse(str(tmp_path), silent_seconds=DEADLINE_SECONDS).begin()
    assert time.monotonic() - begun < DEADLINE_SECONDS / 2
    timer.join()


def test_a_torn_note_is_replaced(tmp_path):
    (tmp_path / NAME).write_text('{"token": "')
    fast(tmp_path).begin()
    with pytest.raises(ValueError, match="received one on this host"):
        fast(tmp_path).begin()


def test_the_note_is_renewed_without_changing_its_size(tmp_path):
    one = fast(tmp_path)
    one.begin()
    sizes = set()

    def is_renewed() -> bool:
        text = (tmp_path / NAME).read_bytes()
        sizes.add(len(text))
        return b'"number": 3' in text

    wait_until(is_renewed)
    assert sizes == {512}
    one.end()


def test_a_training_that_was_replaced_says_so_and_leaves_the_note_of_the_other_one(tmp_path):
    one = fast(tmp_path)
    one.begin()
    one.check()
    # A new file, as another training makes it, after this one was stopped for long.
    (tmp_path / NAME).unlink()
    note_of_another_host(tmp_path, number=5)

    def is_noticed() -> bool:
        try:
            one.check()
        except ValueError as error:
            return "received one on host host7 (process 11) that has begun while this one made no sign" in str(error)
        return False

    wait_until(is_noticed)
    one.end()
    assert '"number": 5' in (tmp_path / NAME).read_text()


def test_of_two_trainings_that_begin_at_once_one_is_refused(tmp_path):
    refused: list[str] = []
    trainings = [fast(tmp_path) for _ in range(8)]
    together = threading.Barrier(len(trainings))

    def begin(training: InUse) -> None:
        together.wait()
        try:
            training.begin()
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=begin, args=(training,)) for training in trainings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == len(trainings) - 1


def test_without_proc_processes_are_looked_at_from_outside(tmp_path, monkeypatch):
    owner = Owner.of_this_process()
    monkeypatch.setattr(in_use, "_machine", lambda: "another boot")
    assert owner.is_alive() is None
