"""Runs tests of the native transport on every TensorFlow, each with the same build of tfdist-native.

Without names one pair of each TensorFlow is tested, minutes each. The environments are those of
`python -m tests.matrix`. A result is used again until the code changes. --write writes the table of native/README.md
and needs all results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.generated import between_marks
from tests.matrix.environments import made
from tests.matrix.pairs import Pair
from tests.matrix.running import run_in
from tests.native import build
from tests.processes import ROOT

PAIRS = (Pair("2.15", "2.15"), Pair("2.18", "3.8"), Pair("2.19", "3.10"), Pair("2.20", "3.12"), Pair("2.21", "3.15"))
TESTS = ("done_callback", "collectives", "training", "choice", "failures")
PAIR_SECONDS = 1800
FOLDER = ROOT / "build" / "matrix"
_VERSIONS = (
    "import keras, sys, tensorflow; print(tensorflow.__version__, keras.__version__, '%d.%d' % sys.version_info[:2])"
)


def fingerprint() -> str:
    """Returns a hash of the code on which the results depend."""
    digest = hashlib.sha256()
    for folder in ("tfdist", "tests/native", "native/cpp", "native/src"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def result_of(pair: Pair, package: Path) -> dict[str, Any]:
    """Returns the result of a pair, which is measured unless there is one of the present code.

    Args:
        pair: the pair.
        package: the folder with tfdist_native.

    Raises:
        RuntimeError: if the environment cannot be made, or the tests do not end within their deadline.
    """
    path = FOLDER / "native" / fingerprint() / f"{pair.name}.json"
    if path.exists():
        return json.loads(path.read_text())
    python = made(pair, FOLDER / "environments")
    path.parent.mkdir(parents=True, exist_ok=True)
    report, log, began = path.with_suffix(".xml"), path.with_suffix(".log"), time.monotonic()
    report.unlink(missing_ok=True)
    # "not full" also in tests/full: the other tests vary what is trained, which does not depend on TensorFlow.
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not full", f"--junitxml={report}"]
    tests = [f"tests/native/test_{name}.py" for name in TESTS]
    command = ["-m", "pytest", *tests, *options]
    given = {build.GIVEN: str(package)}
    code = run_in(pair, python, *command, log=log, deadline_seconds=PAIR_SECONDS, environment=given)
    if not report.exists():
        raise RuntimeError(f"{pair.name}: no result ({code}) within {PAIR_SECONDS} s:\n{log.read_text()[-6000:]}")
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [str(case.get("name")) for case in cases if len(case) and case.find("skipped") is None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    versions = subprocess.check_output([str(python), "-c", _VERSIONS], env=quiet, text=True, timeout=120).split()[-3:]
    result = {
        "versions": versions,
        "passed": len(cases) - len(bad) - len(skipped),
        "skipped": len(skipped),
        "failed": bad,
        "seconds": time.monotonic() - began,
    }
    path.write_text(json.dumps(result))
    return result


def table(results: Mapping[Pair, Mapping[str, Any]]) -> str:
    """Returns the table of native/README.md."""
    lines = ["| TensorFlow | Keras | Python | tests |", "| --- | --- | --- | --- |"]
    for result in results.values():
        failed = "".join(f", `{name}` fails" for name in result["failed"])
        lines.append(f"| {' | '.join(result['versions'])} | {result['passed']} pass{failed} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    by_name = {pair.name: pair for pair in PAIRS}
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.native", description=__doc__)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=f"one or more of {', '.join(by_name)}")
    parser.add_argument("--write", type=Path, help="document whose table to write, such as native/README.md")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.pairs if name not in by_name]
    if unknown:
        parser.error(f"expected pairs out of {', '.join(by_name)}, received {', '.join(unknown)}.")
    package = build.package()
    results = {}
    for pair in [by_name[name] for name in arguments.pairs] or PAIRS:
        results[pair] = result = result_of(pair, package)
        print(
            f"{pair.name}: TensorFlow {result['versions'][0]}: {result['passed']} passed, {result['skipped']} skipped; "
            f"{result['seconds']:.0f} s{''.join(f'; failed: {name}' for name in result['failed'])}",
            flush=True,
        )
    if arguments.write:
        arguments.write.write_text(between_marks(arguments.write.read_text(), "releases", table(results)))
    if any(result["failed"] or not result["passed"] for result in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
