"""The command `python -m tfdist.input inspect PATTERN --pipelines N`."""

import sys

from tfdist.input.inspect import main

if __name__ == "__main__":
    sys.exit(main())
