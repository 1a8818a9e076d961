"""The program `tfdist launch`."""

from __future__ import annotations

import sys

from tfdist.launch.args import parse
from tfdist.launch.command import CommandError
from tfdist.launch.supervisor import launch


def main(argv: list[str] | None = None) -> int:
    """Runs `tfdist launch` and returns its exit code.

    Args:
        argv: The arguments after `tfdist launch`; those of this process if None.
    """
    try:
        spec = parse(sys.argv[1:] if argv is None else argv)
    except SystemExit as end:
        return int(end.code or 0)
    except ValueError as error:
        return _refuse(error, 2)
    try:
        return launch(spec).exit_code
    except CommandError as error:
        return _refuse(error, error.exit_code)
    except ValueError as error:
        return _refuse(error, 2)
    except KeyboardInterrupt:
        return 130  # Before the ranks were started; afterwards the launcher passes it on to them.
    except OSError as error:
        return _refuse(error, 1)


def _refuse(error: Exception, code: int) -> int:
    print(f"tfdist launch: {error}", file=sys.stderr)
    return code
