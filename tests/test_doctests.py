"""The examples in the docstrings of all modules run in one process with four logical CPUs."""

from __future__ import annotations

import importlib.util
import json
import pkgutil

import pytest

import tfdist

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(tfdist.__path__, "tfdist.")
    if found.name.rpartition(".")[2] != "__main__"
    # Their extra has to be installed.
    and (found.name.split(".")[1] not in tfdist._ROOMS_OF_EXTRAS or importlib.util.find_spec(found.name.split(".")[1]))
)

PROGRAM = """
import contextlib, doctest, importlib, io, json, sys
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
results = {}
for name in sys.argv[1:]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        module = importlib.import_module(name)
        outcome = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    results[name] = [outcome.failed, outcome.attempted, said.getvalue()]
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(module_children):
    finished = module_children.run(PROGRAM, "tfdist", *MODULES)
    assert finished.code == 0, finished.err
    return json.loads(finished.out.splitlines()[-1])


@pytest.mark.parametrize("name", ["tfdist", *MODULES])
def test_examples_run(name, results):
    failed, _, said = results[name]
    assert not failed, said


def test_there_are_examples(results):
    assert sum(attempted for _, attempted, _ in results.values()) > 50
