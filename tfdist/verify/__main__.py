"""Runs `python -m tfdist.verify` as `tfdist verify`."""

import sys

from tfdist._cli import exit_code_of
from tfdist.verify import main

if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(sys.argv[1:])))
