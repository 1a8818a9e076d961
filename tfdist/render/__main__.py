"""Runs `tfdist render` as `python -m tfdist.render`."""

import sys

from tfdist._cli import exit_code_of
from tfdist.render import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
