"""Runs functions of a notebook on several workers, each of which is a new process on this machine.

Example:
    >>> from tfdist import notebook
    >>> notebook.run(lambda: "trained", workers=1, verbose=False)
    'trained'
"""

from tfdist.notebook.run import run
from tfdist.notebook.values import TaskTraceback

__all__ = ["TaskTraceback", "run"]
