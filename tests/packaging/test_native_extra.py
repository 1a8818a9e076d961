"""`pip install '.[native]'` in a checkout builds tfdist-native, which TensorFlow then loads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.native.build import compiler
from tests.packaging.built import copy_sources
from tests.processes import run

SECONDS = 900
USABLE = """
import tfdist_native
from tfdist.allreduce.native.library import why_missing
print(f"{tfdist_native.__file__}: {why_missing() or 'usable'}")
"""


@pytest.mark.full
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler (c++ or g++, or CXX) is installed")
def test_the_extra_builds_the_native_transport_in_a_checkout(tmp_path: Path) -> None:
    sources, environment = tmp_path / "sources", tmp_path / "environment"
    copy_sources(sources)
    made = run([sys.executable, "-m", "venv", str(environment)], cwd=tmp_path, deadline_seconds=120)
    assert made.code == 0
    # Without TensorFlow, which the transport is not built with.
    command = [str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", ".[native]"]
    assert run(command, cwd=sources, deadline_seconds=SECONDS, env={"PYTHONPATH": ""}).code == 0
    (package,) = environment.glob("lib/python*/site-packages/tfdist_native")
    assert {path.name for path in package.glob("*.so")} == {"libtfdist_native.so", "tfdist_native_ops.so"}
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "tfdist_native").symlink_to(package)
    path = {"PYTHONPATH": f"{alone}:{sources}"}
    ended = run([sys.executable, "-c", USABLE], cwd=tmp_path, deadline_seconds=120, env=path)
    assert f"{alone}/tfdist_native/__init__.py: usable" in ended.text
