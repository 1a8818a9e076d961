"""Runs `python -m tfdist.env` as `tfdist env`."""

import sys

from tfdist._cli import exit_code_of
from tfdist.env import main

if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(sys.argv[1:])))
