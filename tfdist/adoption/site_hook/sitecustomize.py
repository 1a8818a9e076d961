"""Calls tfdist.adopt() in the Python process that `tfdist launch --adopt` has started, before its program begins.

Python imports the first module named `sitecustomize` when it starts. This one removes its folder from sys.path and from
PYTHONPATH, so that the Python processes that the program starts are not adopted. Then it imports the sitecustomize that
Python would have imported without it, for example that of a virtual environment.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

_NAME = "sitecustomize"


def begin() -> None:
    """Removes the traces of this module, runs the next sitecustomize, and adopts."""
    _forget(os.path.dirname(os.path.abspath(__file__)))
    _import_next()
    _adopt()


def _forget(folder: str) -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = os.pathsep.join(entry for entry in entries if os.path.abspath(entry) != folder)
    if kept:
        os.environ["PYTHONPATH"] = kept
    else:
        os.environ.pop("PYTHONPATH", None)


def _import_next() -> None:
    own = sys.modules.pop(_NAME)
    try:
        importlib.import_module(_NAME)
    except ImportError as error:
        if error.name != _NAME:
            raise
    finally:
        # Python looks for the module under its name when this file has run.
        sys.modules.setdefault(_NAME, own)


def _adopt() -> None:
    try:
        from tfdist.adoption import adopt
    except ImportError as error:
        if importlib.util.find_spec("tensorflow") is None:
            return  # This process makes no strategy.
        print(
            f"tfdist launch: expected tfdist in the environment of {sys.executable} for --adopt, received {error}; "
            "install tfdist there, or leave --adopt out.",
            file=sys.stderr,
            flush=True,
        )
        # Python would go on after an exception, even SystemExit, and train without adoption.
        os._exit(2)
    adopt()


# Tests import this file as a part of tfdist, too.
if __name__ == _NAME:
    begin()
