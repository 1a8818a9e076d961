"""python -m tfdist.input inspect PATTERN --pipelines N"""

import sys

from tfdist.input.inspect import main

sys.exit(main())
