"""What pip would install for each extra: one package of TensorFlow, and no libraries of CUDA for CPUs."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

from tests.processes import ROOT

SECONDS = 300
ON_LINUX_X86 = sys.platform == "linux" and platform.machine() == "x86_64"


def resolved(extras: str) -> dict[str, str]:
    """Returns the packages and their versions that pip would install in an empty environment; installs nothing."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    ended = subprocess.run([*command, f".{extras}"], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, ended.stderr
    found = [one["metadata"] for one in json.loads(ended.stdout)["install"]]
    return {one["name"].lower().replace("_", "-"): one["version"] for one in found}


def of_tensorflow(packages: dict[str, str]) -> list[str]:
    return [name for name in packages if name in ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")]


@pytest.mark.full
@pytest.mark.skipif(not ON_LINUX_X86, reason="elsewhere there is no package tensorflow-cpu")
@pytest.mark.parametrize("extras", ["[cpu,train]", "[cpu,test]", "[cpu,dev]"])
def test_the_smallest_tensorflow_is_installed_and_no_other(extras: str) -> None:
    packages = resolved(extras)
    assert of_tensorflow(packages) == ["tensorflow-cpu"]
    assert not [name for name in packages if name.startswith("nvidia")]


@pytest.mark.full
def test_without_an_extra_no_tensorflow_is_installed() -> None:
    packages = resolved("")
    assert of_tensorflow(packages) == []
    assert "keras" in packages


@pytest.mark.full
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="TensorFlow Addons ends with Python 3.11")
def test_addons_take_the_tensorflow_of_the_extra_in_the_version_that_they_need() -> None:
    packages = resolved("[cpu,addons]")
    assert [packages[name] for name in of_tensorflow(packages)] == ["2.15.1"]
    assert packages["tensorflow-addons"] == "0.23.0"
