"""Runs `python -m tfdist.verify` as `tfdist verify`."""

import sys

from tfdist.verify import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
