from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import tfdist.cluster
import tfdist.launch

MODULES = [
    "tfdist.launch",
    *(
        f"tfdist.launch.{found.name}"
        for found in pkgutil.iter_modules(tfdist.launch.__path__)
        if found.name != "__main__"
    ),
]


def test_no_module_imports_tensorflow() -> None:
    code = (
        f"import sys, importlib\nfor name in {MODULES!r}: importlib.import_module(name)\n"
        "heavy = {'tensorflow', 'keras', 'tf_keras', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("name", tfdist.launch.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>> " in getattr(tfdist.launch, name).__doc__


def test_the_launcher_and_the_cluster_package_share_the_class_task() -> None:
    assert tfdist.launch.Task is tfdist.cluster.Task
