"""What works without TensorFlow, which tfdist does not depend on, and the sentence of what does not."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec

import pytest

from tfdist._tensorflow import MISSING, is_installed

# As if TensorFlow were not installed: Python then finds no module of this name.
HIDE = "import sys\nsys.modules['tensorflow'] = None\n"
# Imports what its argument names, and prints the message of each error.
NAMES = f"""
{HIDE}
import importlib, json
messages = {{}}
for room, names in json.loads(sys.argv[1]).items():
    for name in names or [""]:
        try:
            module = importlib.import_module(room)
            name and getattr(module, name)
        except ImportError as error:
            messages[f"{{room}}.{{name}}"] = [type(error).__name__, error.name, str(error)]
print(json.dumps(messages))
"""
COMMAND = f"""
{HIDE}
from tfdist import _cli
sys.exit(_cli.main(sys.argv[1:]))
"""
NEED_IT = {
    "tfdist": ["create_strategy"],
    "tfdist.allreduce": ["sum_gradients", "Streams"],
    "tfdist.averaging": ["ChocoSGD", "DPSGD", "LocalSGD", "averaged", "staleness_of"],
    "tfdist.checkpoint": ["AutoResume", "restore_model"],
    "tfdist.collectives": [""],
    "tfdist.input": ["distribute_files"],
    "tfdist.keras_compat": ["applied_mends"],
    "tfdist.layers": [""],
    "tfdist.optimizers": ["LAMB"],
    "tfdist.saving": ["save_model", "replaced"],
    "tfdist.strategies": ["mirrored"],
    "tfdist.watch": ["StallWatch"],
    "tfdist.workers": [""],
}
DO_NOT = {
    "tfdist": ["AllReduceOptions", "__version__"],
    "tfdist.averaging": ["ring", "Staleness", "Nesterov", "ElasticAverage"],
    "tfdist.averaging.simulate": [""],
    "tfdist.cluster": ["ClusterConfig"],
    "tfdist.doctor": ["main"],
    "tfdist.flags": ["define_flags"],
    "tfdist.launch": ["launch"],
    "tfdist.notebook": ["run"],
    "tfdist.verify": ["verify"],
    "tfdist.watch": ["WatchOptions"],
}


def test_what_needs_tensorflow_says_what_to_install(children):
    messages = json.loads(children.run(NAMES, json.dumps(NEED_IT), cold=True).out)
    expected = {
        f"{room}.{name}": ["ModuleNotFoundError", "tensorflow", MISSING]
        for room, names in NEED_IT.items()
        for name in names
    }
    assert messages == expected


def test_the_cluster_the_launcher_and_the_doctor_need_no_tensorflow(children):
    assert json.loads(children.run(NAMES, json.dumps(DO_NOT), cold=True).out) == {}


@pytest.mark.parametrize(
    "argv", [["train", "--epochs=1"], ["bench", "optimizer"], ["bench", "allreduce"]], ids=lambda argv: " ".join(argv)
)
def test_a_command_that_needs_tensorflow_says_what_to_install(argv, children):
    ended = children.run(COMMAND, *argv, cold=True)
    assert (ended.code, ended.err) == (2, f"tfdist: {MISSING}\n")


@pytest.mark.parametrize("command", ["", "launch", "doctor", "verify", "train", "bench"])
def test_help_needs_no_tensorflow(command, children):
    ended = children.run(COMMAND, *command.split(), "--help", cold=True)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out


def test_a_folder_that_an_uninstalled_package_has_left_is_no_tensorflow(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None, is_package=True))
    assert not is_installed()
