"""The program `tfdist train`, which trains a model on any strategy. You can copy its code into your own program.

`tfdist train --help` lists the flags without importing TensorFlow.
"""

from tfdist.train.cli import main

__all__ = ["main"]
