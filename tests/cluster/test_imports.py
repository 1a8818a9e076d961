from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import tfdist.cluster

MODULES = [
    "tfdist.cluster",
    *(f"tfdist.cluster.{found.name}" for found in pkgutil.iter_modules(tfdist.cluster.__path__)),
]


def test_it_does_not_import_tensorflow():
    code = (
        f"import sys, importlib\nfor name in {MODULES!r}: importlib.import_module(name)\n"
        "heavy = {'tensorflow', 'keras', 'tf_keras', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0


def test_everything_exported_is_there_and_described():
    for name in tfdist.cluster.__all__:
        assert getattr(tfdist.cluster, name).__doc__
