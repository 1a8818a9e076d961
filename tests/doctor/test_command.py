"""The command `tfdist doctor` in a single process: options, output, exit code, and the directory."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
from threading import Event

import pytest

import tfdist.doctor
import tfdist.doctor.checks
from tests.processes import ROOT, run
from tests.test_broken_pipe import run_with_reader
from tfdist import _cli
from tfdist.doctor import main
from tfdist.doctor.checks.disk import Room
from tfdist.doctor.checks.gpu import Gpus
from tfdist.doctor.checks.threads import Threads
from tfdist.doctor.facts import Sources
from tfdist.doctor.own_files import OwnFiles
from tfdist.doctor.signals import noted_signals

MODULES = [
    f"{package.__name__}.{found.name}"
    for package in (tfdist.doctor, tfdist.doctor.checks)
    for found in pkgutil.iter_modules(package.__path__)
    if found.name != "__main__"
]
# A machine on which every check passes.
HEALTHY = Sources(
    versions=lambda: {"Python": "3.11.7", "TensorFlow": "2.21.0", "Keras": "3.15.0", "tfdist": "0.1"},
    threads=lambda: Threads(cpus=(0, 1)),
    memory=lambda: 64 << 30,
    rooms=lambda path: (Room(path=path or "/tmp", free=64 << 30),),
    shared_memory=lambda: Room(path="/dev/shm", free=8 << 30),
    gpus=lambda deadline: Gpus(),
)


@pytest.fixture(autouse=True)
def alone(no_surroundings, monkeypatch):
    monkeypatch.delenv("TFDIST_LAUNCH_ID", raising=False)


def test_no_module_imports_tensorflow():
    code = (
        f"import sys, importlib\nfor name in {MODULES!r}: importlib.import_module(name)\n"
        "heavy = {'tensorflow', 'keras', 'tf_keras', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    assert run([sys.executable, "-c", code], cwd=ROOT, deadline_seconds=60).code == 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0


def test_a_healthy_machine_ends_with_0_and_one_line_for_each_check(capsys):
    assert main([], sources=HEALTHY) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["pass", check] for check in ("versions", "disk", "memory", "/dev/shm", "GPU", "threads")
    ]
    assert last == "tfdist doctor: single process: 6 passes, 0 warnings, 0 failures"


def test_a_warning_ends_with_0(capsys):
    crowded = Sources(**{**vars(HEALTHY), "threads": lambda: Threads(cpus=(0, 1), limit=1.0)})
    assert main([], sources=crowded) == 0
    assert "warn  threads" in capsys.readouterr().out


def test_a_failure_ends_with_1_and_says_what_to_do(capsys):
    poor = Sources(**{**vars(HEALTHY), "memory": lambda: 1 << 20})
    assert main([], sources=poor) == 1
    assert "fail  memory    single process  1 MiB are available; end other programs or" in capsys.readouterr().out


def test_json_is_one_line_with_all_findings(capsys):
    assert main(["--json"], sources=HEALTHY) == 0
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert result["exit_code"] == 0
    assert result["findings"][0] == {
        "check": "versions",
        "tasks": ["single process"],
        "verdict": "pass",
        "text": "Python 3.11.7, TensorFlow 2.21.0, Keras 3.15.0, tfdist 0.1",
        "action": "",
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--timeout-seconds", "0"], "expected --timeout-seconds above 0, received 0"),
        (["--timeout-seconds", "nan"], "expected --timeout-seconds above 0, received nan"),
        (["--timeout-seconds", "soon"], "invalid float value: 'soon'"),
        (["--directory", "gs://bucket/model"], "received 'gs://bucket/model'; only a directory that is mounted"),
        (["--directory", ""], "expected the path of a directory for --directory, received ''"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_wrong_options_end_with_2(options, says, capsys):
    assert main(options, sources=HEALTHY) == 2
    assert says in capsys.readouterr().err


def test_it_is_a_command_of_tfdist(capsys):
    assert _cli.main(["doctor", "--help"]) == 0
    assert "--timeout-seconds" in capsys.readouterr().out


def test_a_broken_tf_config_fails_and_the_other_checks_go_on(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}')
    assert main([], sources=HEALTHY) == 1
    printed = capsys.readouterr().out
    assert "fail  TF_CONFIG  single process  expected task.index to be an index of cluster.worker" in printed
    assert "pass  memory" in printed


def test_a_good_directory_passes_and_is_empty_afterwards(tmp_path, capsys):
    assert main(["--directory", str(tmp_path)], sources=HEALTHY) == 0
    assert f"{tmp_path} can be written to; renames are atomic, locks and fsync work" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_does_not_exist_fails(tmp_path, capsys):
    assert main(["--directory", str(tmp_path / "missing")], sources=HEALTHY) == 1
    assert "missing: No such file or directory; make it, or mount the same file" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_file_instead_of_a_directory_fails(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["--directory", str(tmp_path / "file")], sources=HEALTHY) == 1
    assert "file: Not a directory; " in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_fails(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main(["--directory", str(tmp_path)], sources=HEALTHY) == 1
    assert "Permission denied; check its owner" in capsys.readouterr().out


def test_a_directory_without_room_for_a_file_fails_and_is_empty_afterwards(tmp_path):
    # A limit of the size of files has the same effect as a full disk or a quota.
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "from tfdist.doctor import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    shared = tmp_path / "shared"
    shared.mkdir()
    done = run([sys.executable, "-c", program, "--directory", str(shared)], cwd=tmp_path, deadline_seconds=60)
    assert done.code == 1
    assert f"cannot write to {shared}: File too large; check its owner, its room and its quota" in done.text
    assert list(shared.iterdir()) == []


def test_disks_that_do_not_answer_do_not_stop_it(capsys):
    ended = Event()
    hanging = Sources(**{**vars(HEALTHY), "rooms": lambda path: ended.wait(60) and ()})
    try:
        assert main(["--timeout-seconds", "0.5"], sources=hanging) == 0
    finally:
        ended.set()
    assert "warn  disk      single process  room is unknown: a file system does not answer" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_noted_and_the_handlers_are_put_back(number):
    before = signal.getsignal(number)
    with noted_signals() as received:
        signal.raise_signal(number)
        assert received == [number]
    assert signal.getsignal(number) is before


def test_signals_that_are_noted_are_not_read_by_another_part_of_the_program():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        with noted_signals():
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
    finally:
        assert signal.set_wakeup_fd(before) == writer
        os.close(reader)
        os.close(writer)


def test_a_directory_that_does_not_answer_fails(tmp_path, monkeypatch, capsys):
    ended = Event()
    monkeypatch.setattr(OwnFiles, "write", lambda files: ended.wait(60))
    try:
        assert main(["--directory", str(tmp_path), "--timeout-seconds", "1"], sources=HEALTHY) == 1
    finally:
        ended.set()
    assert re.search(
        rf"cannot write to {tmp_path}: the file system has not answered for \d+ ms; check its file server and the "
        "network to it, or give more --timeout-seconds",
        capsys.readouterr().out,
    )


def test_a_file_in_place_of_a_directory_is_told(tmp_path, capsys):
    file = tmp_path / "model.keras"
    file.write_text("")
    assert main(["--directory", str(file)], sources=HEALTHY) == 1
    assert "Not a directory; give the path of a directory, and not of a file" in capsys.readouterr().out


@pytest.mark.parametrize("module", [["tfdist", "doctor"], ["tfdist.doctor"]], ids=" ".join)
@pytest.mark.parametrize("read_line", [True, False])
def test_output_that_nobody_reads_ends_quietly(module, read_line):
    code, err = run_with_reader(["-m", *module], read_line, unbuffered=False)
    assert (code, err) in [(141, ""), (0, "")] if read_line else [(141, "")]


def test_a_program_can_ask_for_the_findings():
    program = "from tfdist.doctor import Finding; print(Finding(check='a', task='b', verdict='pass', text='c').line)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout == "c\n"
