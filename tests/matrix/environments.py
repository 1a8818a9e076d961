"""Makes the environment of a pair with uv, which links the files of one cache into each environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.matrix.pairs import Pair
from tests.processes import ROOT

INSTALL_SECONDS = 900


def made(pair: Pair, folder: Path) -> Path:
    """Makes the environment of a pair, unless it is there with the same packages; returns its Python.

    Args:
        pair: the pair.
        folder: the folder of all environments.

    Raises:
        RuntimeError: if uv is not installed, or fails.
    """
    environment = folder / pair.name
    python, marker = environment / "bin" / "python", environment / "installed.txt"
    wanted = "\n".join([sys.version, *pair.requirements(), *pair.alone()])
    if marker.exists() and marker.read_text() == wanted:
        return python
    shutil.rmtree(environment, ignore_errors=True)
    _uv("venv", "--python", sys.executable, str(environment))
    _uv("pip", "install", "--python", str(python), *pair.requirements())
    if pair.alone():
        _uv("pip", "install", "--no-deps", "--python", str(python), *pair.alone())
    marker.write_text(wanted)
    return python


def _uv(*arguments: str) -> None:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise RuntimeError("expected uv to be installed, received none; install it with `pip install uv`.")
    ended = subprocess.run(
        [uv, arguments[0], "--quiet", *arguments[1:]],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_SECONDS,
    )
    if ended.returncode:
        raise RuntimeError(f"uv {' '.join(arguments)} failed:\n{ended.stdout}")
