"""Runs Keras's own tests of distribution and training with and without mends, and prints what differs.

    python -m tests.upstream

The tests are part of the installed package of Keras. Each file runs in processes of its own: without mends, with the
mends of the strategy "mirrored", and the tests of the trainer also with every test inside of the scope of a
MirroredStrategy of two logical CPUs.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import io
import json
import sys
import tempfile
from pathlib import Path

from tests.processes import run

FILES = {
    "backend/tensorflow/distribute_test.py": ("", "mends"),
    "backend/tensorflow/optimizer_distribute_test.py": ("", "mends"),
    "trainers/trainer_test.py": ("", "mends", "scope", "scope mends"),
}
TITLES = {"": "stock", "mends": "mends", "scope": "stock in a scope", "scope mends": "mends in a scope"}
DEADLINE_SECONDS = 1800


def outcomes(file: str, asked: str, *options: str) -> dict[str, str]:
    """Returns the outcome of each test of a file, such as "passed" or "failed: ValueError: ..."."""
    (package,) = importlib.util.find_spec("keras").submodule_search_locations
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        path = str(Path(package, "src", file))
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "pytest",
            path,
            "-p",
            "tests.upstream.plugin",
            "-c",
            "/dev/null",
            "-q",
        ]
        # Without addopts, options of the caller's environment would select tests of tfdist.
        environment = {
            "TFDIST_UPSTREAM": asked,
            "TFDIST_UPSTREAM_RESULTS": str(results),
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
        }
        command += [f"--rootdir={package}", *options]
        with contextlib.redirect_stdout(io.StringIO()):
            ended = run(command, cwd=Path(folder), env=environment, deadline_seconds=DEADLINE_SECONDS)
        if not results.exists():
            raise RuntimeError(f"expected results of {file} ({TITLES[asked]}), received none:\n{ended.text[-6000:]}")
        if ended.code not in (0, 1):
            # pytest ends with 0 or 1 after all tests.
            raise RuntimeError(
                f"expected all tests of {file} ({TITLES[asked]}) to run, but pytest ended with {ended.code}:\n"
                f"{ended.text[-6000:]}"
            )
        return json.loads(results.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="run only tests whose names match, as in pytest")
    arguments = parser.parse_args()
    options = ["-k", arguments.k] if arguments.k else []
    for file, variants in FILES.items():
        print(f"\n{file}", flush=True)
        found = {asked: outcomes(file, asked, *options) for asked in variants}
        for asked, tests in found.items():
            counted = collections.Counter(outcome.split(":")[0] for outcome in tests.values())
            print(f"  {TITLES[asked]}: {', '.join(f'{number} {word}' for word, number in sorted(counted.items()))}")
        for before, after in (("", "mends"), ("scope", "scope mends"), ("mends", "scope mends")):
            if before not in found or after not in found:
                continue
            for test, outcome in found[before].items():
                now = found[after].get(test, "not run")
                if outcome.split(":")[0] != now.split(":")[0]:
                    print(f"  {test}\n    {TITLES[before]}: {outcome[:200]}\n    {TITLES[after]}: {now[:200]}")


if __name__ == "__main__":
    main()
