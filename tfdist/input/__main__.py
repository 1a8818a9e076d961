"""The command `python -m tfdist.input inspect PATTERN --pipelines N`."""

import sys

from tfdist._cli import exit_code_of
from tfdist.input.inspect import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
