"""Runs the `tfdist` command as `python -m tfdist`."""

import sys

from tfdist._cli import main

if __name__ == "__main__":
    sys.exit(main())
