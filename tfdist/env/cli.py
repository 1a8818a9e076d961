"""The command line of `tfdist env`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from tfdist._suggestions import Parser


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    result = Parser(
        prog="tfdist env",
        description="Prints what a report of a defect needs: versions, devices, the cluster and what describes it, "
        "mends, and the environment variables that change a training. Values that may be secret are not printed.",
        allow_abbrev=False,
    )
    result.add_argument("--json", action="store_true", help="print everything as one line of JSON")
    result.add_argument(
        "--timeout-seconds",
        type=float,
        default=120.0,
        metavar="S",
        help="how long TensorFlow may take to start (default: %(default)g)",
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tfdist env` and returns its exit code.

    Args:
        argv: the arguments after `tfdist env`; None takes those of this process.

    Returns:
        0, also if there are warnings; 2 for wrong options.

    Example:
        >>> from tfdist.env import main
        >>> main(["--timeout-seconds", "0"])  # after a line on stderr that says why
        2
    """
    try:
        given = parser().parse_args(sys.argv[1:] if argv is None else list(argv))
    except SystemExit as end:
        return int(end.code or 0)
    if not (given.timeout_seconds > 0 and math.isfinite(given.timeout_seconds)):
        print(f"tfdist env: expected --timeout-seconds above 0, received {given.timeout_seconds:g}.", file=sys.stderr)
        return 2
    from tfdist.env.gather import gather
    from tfdist.env.printing import as_json, as_text

    found = gather(timeout_seconds=given.timeout_seconds)
    print(as_json(found) + "\n" if given.json else as_text(found), end="")
    return 0
