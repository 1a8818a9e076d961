"""Runs `python -m tfdist.bench` as `tfdist bench`."""

import sys

from tfdist.bench import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
