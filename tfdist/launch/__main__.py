"""Runs `tfdist launch` as `python -m tfdist.launch`."""

import sys

from tfdist._cli import exit_code_of
from tfdist.launch import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
