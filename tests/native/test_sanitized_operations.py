"""AddressSanitizer finds nothing in the operations for TensorFlow; test_stress.py runs what is below them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import build
from tests.processes import ROOT, run

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def sanitized() -> dict[str, str]:
    """Returns the environment variables of programs whose tfdist_native is built with AddressSanitizer."""
    libraries = [
        subprocess.run(
            [str(build.compiler()), f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(os.path.isabs(library) for library in libraries):
        pytest.skip("the compiler has no AddressSanitizer")
    package = build.package("address")
    for library in (package / "tfdist_native").glob("*.so"):
        assert b"__asan_init" in library.read_bytes()
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(package)]),
        # The interpreter is built without it. It and TensorFlow keep memory until they end.
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (["tests.native.done_callback_program"], "4000 waits right", 0),
        (["tests.native.every_operation"], "60 operations, 0 wrong", 0),
        (["tests.native.kept_results"], "grown by", 0),
        # It trains on after a step that has failed, and ends with the error of that step.
        (["tests.native.failing_replica", "fit"], "AGAIN True", 1),
    ],
)
def test_operations_access_no_memory_that_is_not_theirs(
    tmp_path: Path, sanitized: dict[str, str], words: list[str], says: str, code: int
) -> None:
    ended = run([sys.executable, "-m", *words], cwd=tmp_path, deadline_seconds=600.0, env=sanitized)
    assert ended.code == code
    assert says in ended.text
    assert "AddressSanitizer" not in ended.text
    assert "runtime error" not in ended.text
