"""`python -m tfdist.bench` is the same as `tfdist bench`."""

import sys

from tfdist.bench import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
