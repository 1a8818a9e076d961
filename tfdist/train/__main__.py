"""`python -m tfdist.train` is the same as `tfdist train`."""

import sys

from tfdist.train.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
