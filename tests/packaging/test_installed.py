"""The wheel and the sdist, installed elsewhere, work without the checkout: `tfdist test` passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import run

SECONDS = 300


def installed(package: Path, folder: Path) -> dict[str, str]:
    """Installs a package in a folder, without what it depends on, and returns the environment that uses it."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([*command, str(folder), str(package)], check=True, timeout=SECONDS, env=environment)
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_an_installed_package_passes_its_own_test(kind: str, packages: dict[str, Path], tmp_path: Path) -> None:
    environment = installed(packages[kind], tmp_path / "installed")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = run(
        [sys.executable, "-c", "import tfdist; print(tfdist.__file__)"],
        cwd=elsewhere,
        deadline_seconds=60,
        env=environment,
    )
    assert where.text.strip() == str(tmp_path / "installed" / "tfdist" / "__init__.py")
    command = [str(tmp_path / "installed" / "bin" / "tfdist"), "test"]
    ended = run([sys.executable, *command], cwd=elsewhere, deadline_seconds=SECONDS, env=environment)
    assert ended.code == 0
    assert ended.text.splitlines()[-1].startswith("tfdist test: PASSED: all 8 checks on 2 workers")
    assert not list(elsewhere.iterdir())
