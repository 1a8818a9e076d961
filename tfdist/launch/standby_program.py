"""The program of a standby process: imports TensorFlow and Keras, waits for its orders, and then becomes a task.

The launcher runs this file as `python FILE ORDERS READY LAUNCHER COMMAND...`. ORDERS is a pipe from which this program
reads the environment variables of the task. READY is a pipe into which it writes one byte when it is ready. LAUNCHER is
the process id of the launcher. This file imports nothing of tfdist, and it does not start TensorFlow: the program of
the task chooses devices and options itself.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import signal
import sys
import types

_PR_SET_PDEATHSIG = 1


def main(orders: int, ready: int, launcher: int, command: list[str]) -> None:
    """Waits for orders with TensorFlow imported, and runs the command as Python would."""
    _die_with(launcher)
    set_path(command)
    tensorflow = importlib.import_module("tensorflow")
    # This attribute imports the Keras that TF_USE_LEGACY_KERAS chooses.
    _ = tensorflow.keras.layers
    # The launcher may have sent the orders already, and listens no more.
    with contextlib.suppress(BrokenPipeError):
        os.write(ready, b"r")
    os.close(ready)
    received = b"".join(iter(lambda: os.read(orders, 65536), b""))
    os.close(orders)
    if not received:
        os._exit(0)  # The launcher needs no standby any more, or has ended.
    os.environ.update(json.loads(received))
    run(command)


def _die_with(launcher: int) -> None:
    """Lets the kernel kill this process when the launcher ends."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The launcher may have ended before the call of prctl.
    if os.getppid() != launcher:
        os._exit(1)


def set_path(command: list[str]) -> None:
    """Replaces the folder of this file in sys.path by the one that Python would have put there for the command."""
    if sys.flags.safe_path:
        return
    first = os.getcwd() if command[0] == "-m" else os.path.dirname(os.path.realpath(command[0]))
    sys.path[0] = first


def run(command: list[str]) -> None:
    """Runs a command as Python would: a file or `-m` and a module, and arguments."""
    if command[0] == "-m":
        _run_module(command)
    else:
        _run_file(command)


def _run_module(command: list[str]) -> None:
    """Runs `-m MODULE ARGUMENTS`, in a new module `__main__`, as Python does."""
    sys.modules["__main__"] = _new_main()
    sys.argv[:] = ["-m", *command[2:]]
    # The function behind `python -m`. Unlike runpy.run_module, it leaves the module in sys.modules, so that its classes
    # can be pickled.
    runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]


def _run_file(command: list[str]) -> None:
    """Runs `FILE.py ARGUMENTS`, in a new module `__main__`, as Python does."""
    path = os.path.abspath(command[0])
    module = _new_main()
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__["__cached__"] = None
    sys.modules["__main__"] = module
    sys.argv[:] = command
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _new_main() -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={})
    return module


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
