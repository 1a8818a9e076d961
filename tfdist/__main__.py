"""`python -m tfdist` is the same as the `tfdist` command."""

import sys

from tfdist._cli import main

if __name__ == "__main__":
    sys.exit(main())
