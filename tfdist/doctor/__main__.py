"""Runs `python -m tfdist.doctor` as `tfdist doctor`."""

import sys

from tfdist._cli import exit_code_of
from tfdist.doctor import main

if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(sys.argv[1:])))
