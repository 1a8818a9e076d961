"""Builds the wheel and the sdist as `python -m build` does, from the files that git knows."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.processes import ROOT

DEADLINE_SECONDS = 300


def tracked(folder: str = "") -> list[str]:
    """Returns the paths of the files in a folder of the repository that git knows."""
    return subprocess.check_output(["git", "ls-files", folder or "."], cwd=ROOT, text=True).split()


def copy_sources(folder: Path) -> None:
    """Copies the files that git knows into a folder, which packages can be built from.

    A folder `build` or `*.egg-info` in the checkout would bring files of earlier builds into the packages.
    """
    for path in tracked():
        if not path.startswith(("docs/", "notebooks/")):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, target)


@functools.cache
def built() -> dict[str, Path]:
    """Returns the path of the wheel and the sdist, which are built once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="tfdist-built-"))
    copy_sources(folder / "sources")
    # Without isolation, because build would download its backend, which the extra `test` has installed.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), "."]
    ended = subprocess.run(
        command, cwd=folder / "sources", capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def remove() -> None:
    """Removes what has been built."""
    if built.cache_info().currsize:
        shutil.rmtree(built()["wheel"].parent.parent, ignore_errors=True)
        built.cache_clear()
