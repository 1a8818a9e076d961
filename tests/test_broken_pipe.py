"""A command whose output nobody reads any more, as in `tfdist train | head -1`, ends quietly, as Unix tools do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.processes import ROOT
from tfdist._cli import exit_code_of

DEADLINE_SECONDS = 120.0
TRAIN = ["train", "--data=synthetic", "--image_shape=8,8,1", "--num_classes=2", "--epochs=20", "--model=mlp"]


def run_with_reader(arguments, read_line, *, unbuffered, both=False):
    """Returns the exit code and stderr of a Python program whose stdout is closed before or after its first line."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONUNBUFFERED"] = "1" if unbuffered else ""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if both else subprocess.PIPE,
        text=True,
    )
    try:
        if read_line:
            assert process.stdout.readline()
        process.stdout.close()
        # communicate() would read the closed pipe.
        err = "" if both else process.stderr.read()
        return process.wait(DEADLINE_SECONDS), err
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("unbuffered", [True, False])
@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "tfdist", "--help"],
        ["-m", "tfdist", "train", "--help"],
        ["-m", "tfdist", "bench", "--help"],
        ["-m", "tfdist.train", "--help"],
        ["-m", "tfdist.bench", "--help"],
    ],
    ids=" ".join,
)
def test_help_that_nobody_reads_ends_quietly(arguments, unbuffered):
    assert run_with_reader(arguments, False, unbuffered=unbuffered) == (141, "")


@pytest.mark.parametrize("arguments", [["tfdist", "launch", "--help"], ["tfdist.launch", "--help"]], ids=" ".join)
def test_help_of_launch_that_nobody_reads_ends_quietly(arguments):
    # argparse itself ignores the broken pipe if the text is not buffered.
    assert run_with_reader(["-m", *arguments], False, unbuffered=True) == (0, "")
    assert run_with_reader(["-m", *arguments], False, unbuffered=False) == (141, "")


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_training_whose_output_is_cut_off_ends_quietly(both, tmp_path):
    arguments = ["-m", "tfdist", *TRAIN, f"--model_dir={tmp_path}"]
    code, err = run_with_reader(arguments, True, unbuffered=False, both=both)
    assert code == 141
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


PROGRAM = """
import os, sys
from tfdist._cli import exit_code_of
def command():
    reading, writing = os.pipe()
    os.close(reading)
    os.write(writing, b"x")
sys.exit(exit_code_of(command))
"""


def test_another_pipe_that_breaks_is_an_error():
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("BrokenPipeError: [Errno 32] Broken pipe")


def test_the_exit_code_of_a_command_is_passed_on():
    assert [exit_code_of(lambda code=code: code) for code in (None, 0, 3)] == [0, 0, 3]
    with pytest.raises(SystemExit) as ended:
        exit_code_of(lambda: sys.exit(5))
    assert ended.value.code == 5
    with pytest.raises(KeyError):
        exit_code_of(lambda: {}["x"])


@pytest.mark.parametrize("arguments", ["launch -- true", "render slurm -- python train.py", "--help"])
def test_a_command_whose_output_is_closed_works(arguments, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m tfdist {arguments} >&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, timeout=60, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["1", ""])
@pytest.mark.parametrize(
    "arguments", [["--help"], ["env"], ["render", "slurm", "--", "python", "a.py"]], ids=lambda words: words[0]
)
def test_an_output_that_cannot_be_written_is_named_in_one_sentence(arguments, unbuffered):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "tfdist", *arguments],
            env={**environment, "PYTHONUNBUFFERED": unbuffered},
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
    assert ended.returncode == 1
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr


def test_a_file_that_cannot_be_written_is_not_taken_for_the_output():
    def fail():
        with open("/dev/full", "w") as full:
            full.write("x")

    with pytest.raises(OSError, match="No space left"):
        exit_code_of(fail)
