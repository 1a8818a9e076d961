"""The ready program: trains a model on any strategy, told by flags; written to be read and copied.

`tfdist train --help` lists the flags, and imports no TensorFlow.
"""

from tfdist.train.cli import main

__all__ = ["main"]
