"""Builds tfdist-native, and its stress program, from native/ of this checkout; once for each state of the sources."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.processes import ROOT

SOURCES = ROOT / "native"
FOLDER = ROOT / "build" / "native"
# Names the folder of a package that is already built, so that every TensorFlow is tested with the same files.
GIVEN = "TFDIST_TESTS_NATIVE"
# The transport without the parts for Python and TensorFlow.
CORE = ("engine", "forked", "lifeline", "mesh", "operation", "sender", "shared_memory_channel", "sum", "tcp_channel")
SANITIZERS = {"": ["-O2"], "address": ["-O1", "-fsanitize=address,undefined"], "thread": ["-O1", "-fsanitize=thread"]}


def compiler() -> str | None:
    """Returns the C++ compiler; None if there is none."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


def package(sanitizer: str = "") -> Path:
    """Returns a folder with the package tfdist_native, for PYTHONPATH; with a sanitizer: address, or none."""
    if os.environ.get(GIVEN) and not sanitizer:
        return Path(os.environ[GIVEN])

    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        options: dict[str, str] = {}
        if sanitizer:
            # CMake keeps the options of its first build in its folder.
            command += [f"--config-settings=build-dir={folder / 'build'}", "--config-settings=cmake.build-type=Debug"]
            options["CXXFLAGS"] = " ".join([*SANITIZERS[sanitizer], "-g", "-DTFDIST_SANITIZED"])
        _run([*command, str(SOURCES)], **options)

    return _once(f"package-{sanitizer}" if sanitizer else "package", build)


def stress(sanitizer: str = "") -> Path:
    """Returns the program of native/tests/stress.cc, built with a sanitizer: address, thread or none."""

    def build(folder: Path) -> None:
        options = [*SANITIZERS[sanitizer], *(["-DTFDIST_SANITIZED", "-Wno-tsan"] if sanitizer else [])]
        sources = [str(SOURCES / "cpp" / f"{name}.cc") for name in CORE]
        program = str(SOURCES / "tests" / "stress.cc")
        _run(
            [str(compiler()), "-std=c++17", "-g", *options, "-o", str(folder / "stress"), program, *sources, "-pthread"]
        )

    return _once(f"stress-{sanitizer or 'plain'}", build) / "stress"


def _once(name: str, build: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256()
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file() and "build" not in path.parts):
        digest.update(path.read_bytes())
    folder = FOLDER / f"{digest.hexdigest()[:12]}-{name}"
    with _lock(name):
        if not folder.exists():
            made = folder.with_name(f"{folder.name}~")
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            build(made)
            made.rename(folder)
    return folder


@contextlib.contextmanager
def _lock(name: str) -> Iterator[None]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str], **variables: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, **variables})
    assert ended.returncode == 0, f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}"
