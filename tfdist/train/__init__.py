"""The ready program `tfdist train`: trains a model on any strategy, as its flags say; written to be read and copied.

`tfdist train --help` lists the flags, and imports no TensorFlow.
"""

from tfdist.train.cli import main

__all__ = ["main"]
