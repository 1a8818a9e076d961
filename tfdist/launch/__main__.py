"""Runs `tfdist launch` as `python -m tfdist.launch`."""

import sys

from tfdist.launch import main

if __name__ == "__main__":
    sys.exit(main())
