"""`tfdist launch --adopt` reaches the Python program of each task, and no other; no test here imports TensorFlow."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import tfdist
from tfdist.adoption.site_hook import sitecustomize
from tfdist.launch.adoption import HOOK, adopting_variables, check_adoptable
from tfdist.launch.args import parse

ROOT = str(Path(tfdist.__file__).parents[1])

# What a process says about itself. TensorFlow, which it does not import, would be adopted.
ASKED = """
import json, os, subprocess, sys

def adoption():
    import sys
    return {"adopts": "tfdist.adoption" in sys.modules, "tensorflow": "tensorflow" in sys.modules}

text = "import json, sys; print(json.dumps('tfdist.adoption' in sys.modules))"
child = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
found = {**adoption(), "child": json.loads(child.stdout), "argv": sys.argv[1:]}
found |= {"path": os.environ.get("PYTHONPATH"), "sys_path": sys.path}
print("FOUND " + json.dumps(found))
"""


def found_in(text: str) -> list[dict]:
    return [json.loads(line.partition("FOUND ")[2]) for line in text.splitlines() if "FOUND " in line]


COMMANDS = {
    "script": ["task.py", "--epochs", "3"],
    "python": [sys.executable, "task.py", "--epochs", "3"],
    "python_u": [sys.executable, "-u", "-X", "utf8", "task.py", "--epochs", "3"],
    "module": ["-m", "task", "--epochs", "3"],
    "shell": ["bash", "-c", f"{sys.executable} task.py --epochs 3"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_program_of_every_task_adopts_and_the_processes_that_it_starts_do_not(command, launcher):
    launcher.write(ASKED)
    ended = launcher.run("--workers", "2", "--adopt", "--", *command)
    assert ended.code == 0
    found = found_in(ended.out)
    assert len(found) == 2
    for task in found:
        assert task["adopts"]
        assert not task["tensorflow"]
        assert not task["child"]
        assert task["argv"] == ["--epochs", "3"]


def test_without_the_option_nothing_is_adopted(launcher):
    ended = launcher.run(
        "--", "bash", "-c", f"{sys.executable} -c 'import sys; print(\"tfdist.adoption\" in sys.modules)'"
    )
    assert ended.out.split()[-1] == "False"


def test_the_path_of_the_program_is_that_of_the_user(launcher):
    launcher.write(ASKED)
    ended = launcher.run("--adopt", "--env", f"PYTHONPATH={ROOT}", "--", "task.py")
    (task,) = found_in(ended.out)
    assert task["path"] == ROOT
    assert str(HOOK) not in task["sys_path"]


@pytest.mark.parametrize(("path", "after"), [("{hook}", None), ("{hook}:/a:/b", "/a:/b"), ("/a:{hook}", "/a")])
def test_the_hook_takes_its_folder_out_of_both_paths(path, after, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", path.format(hook=HOOK))
    monkeypatch.setattr(sys, "path", ["/first", str(HOOK), "/last"])
    sitecustomize._forget(str(HOOK))
    assert os.environ.get("PYTHONPATH") == after
    assert sys.path == ["/first", "/last"]


def test_the_sitecustomize_of_the_environment_runs_too(launcher):
    folder = launcher.place / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.customized = True\n")
    launcher.write("print('CUSTOMIZED', sys.customized, sys.modules['sitecustomize'].__file__)\n" + ASKED)
    path = os.pathsep.join([str(folder), ROOT])
    ended = launcher.run("--adopt", "--env", f"PYTHONPATH={path}", "--", "task.py")
    assert f"CUSTOMIZED True {folder / 'sitecustomize.py'}" in ended.out
    assert found_in(ended.out)[0]["adopts"]


def test_an_environment_with_tensorflow_and_without_tfdist_is_refused(launcher):
    blocked = launcher.place / "blocked"
    (blocked / "tfdist").mkdir(parents=True)
    (blocked / "tfdist" / "__init__.py").write_text("raise ImportError('no tfdist here')\n")
    (blocked / "tensorflow.py").write_text("raise RuntimeError('imported')\n")
    launcher.write("print('BEGUN')\n")
    ended = launcher.run("--adopt", "--env", f"PYTHONPATH={blocked}", "--", "task.py")
    assert ended.code == 2
    assert "BEGUN" not in ended.out
    assert (
        f"tfdist launch: expected tfdist in the environment of {sys.executable} for --adopt, received no tfdist here; "
        "install tfdist there, or leave --adopt out."
    ) in ended.out


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-uE"])
def test_a_python_that_would_not_adopt_is_refused(option, launcher):
    launcher.write("")
    ended = launcher.run("--adopt", "--", sys.executable, option, "task.py")
    assert ended.code == 2
    assert (
        f"expected a Python that runs sitecustomize with --adopt, received the option '{option}' of python" in ended.err
    )
    assert launcher.run("--", sys.executable, option, "-c", "").code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "-I"],
        ["python", "-c", "-I"],
        ["python", "-m", "train", "-E"],
        ["python", "-W", "ignore", "-XS", "train.py"],
        ["train", "-S"],
    ],
)
def test_options_of_the_program_are_not_those_of_python(command):
    check_adoptable(command)


def test_the_hook_comes_before_the_path_of_the_user():
    assert adopting_variables({}) == {"PYTHONPATH": str(HOOK)}
    assert adopting_variables({"PYTHONPATH": "/a:/b"}) == {"PYTHONPATH": f"{HOOK}:/a:/b"}
    assert (HOOK / "sitecustomize.py").is_file()


def test_the_option_is_parsed():
    assert parse(["--adopt", "--", "train.py"]).adopt
    assert not parse(["--", "train.py"]).adopt
