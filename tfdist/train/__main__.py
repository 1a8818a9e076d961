"""`python -m tfdist.train` is the same as `tfdist train`."""

import sys

from tfdist._cli import exit_code_of
from tfdist.train.cli import main

if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(sys.argv[1:])))
