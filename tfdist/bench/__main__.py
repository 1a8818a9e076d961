"""Runs `python -m tfdist.bench` as `tfdist bench`."""

import sys

from tfdist._cli import exit_code_of
from tfdist.bench import main

if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(sys.argv[1:])))
