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


def test_importing_the_cluster_package_imports_neither_tensorflow_nor_the_launcher():
    code = (
        f"import sys, importlib\nfor name in {MODULES!r}: importlib.import_module(name)\n"
        "unwanted = {'tensorflow', 'keras', 'tf_keras', 'numpy', 'tfdist.launch'} & set(sys.modules)\n"
        "sys.exit(f'imported {unwanted}' if unwanted else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0


@pytest.mark.parametrize("name", tfdist.cluster.__all__)
def test_every_public_name_has_an_example(name):
    assert ">>> " in getattr(tfdist.cluster, name).__doc__


def test_only_the_cluster_its_tasks_progress_and_errors_are_public():
    assert tfdist.cluster.__all__ == ["ClusterConfig", "PeerTimeoutError", "PortInUseError", "ProgressFile", "Task"]
