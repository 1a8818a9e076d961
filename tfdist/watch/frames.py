"""Looks at the Python stacks of the threads of this process while they run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

from tfdist._installed import is_installed_code

# TensorFlow calls Python from a pipeline (from_generator, py_function) by the functions of this file.
_CALLS_FROM_A_PIPELINE = "tensorflow/python/ops/script_ops.py"
_TRACE = "tensorflow/python/framework/func_graph.py"
# File and function that are on the stack while a debugger waits for the user. Most debuggers of a terminal subclass
# those of Python; PyCharm and VS Code have pydevd.
_DEBUGGERS = (
    ("/bdb.py", "trace_dispatch"),
    ("/pdb.py", "interaction"),
    ("/pydevd.py", "do_wait_suspend"),
)


def position_of(thread: int) -> str:
    """Returns where a thread is, such as "train.py:12 in main"; "" if it has ended.

    The position is in the program of the user where possible, rather than in a library that the program calls.

    Args:
        thread: `threading.get_ident()` of the thread.

    Example:
        >>> import threading
        >>> " in " in position_of(threading.get_ident())
        True
    """
    return _describe(_frames(sys._current_frames().get(thread)))


def is_tracing(thread: int) -> bool:
    """Returns whether a thread traces a function of TensorFlow.

    Args:
        thread: `threading.get_ident()` of the thread.
    """
    frames = _frames(sys._current_frames().get(thread))
    return any(frame.f_code.co_filename.endswith(_TRACE) for frame in frames)


def is_debugged(thread: int) -> bool:
    """Returns whether a thread is stopped in a debugger, at a breakpoint.

    Args:
        thread: `threading.get_ident()` of the thread.
    """
    codes = [frame.f_code for frame in _frames(sys._current_frames().get(thread))]
    return any(
        code.co_name == function and code.co_filename.replace("\\", "/").endswith(file)
        for code in codes
        for file, function in _DEBUGGERS
    )


def runs(thread: int, code: CodeType) -> bool:
    """Returns whether a thread is within a call of a function.

    Args:
        thread: `threading.get_ident()` of the thread.
        code: the code of the function.
    """
    return any(frame.f_code is code for frame in _frames(sys._current_frames().get(thread)))


def position_in_pipeline(own: int) -> str:
    """Returns where Python code of an input pipeline is, such as "data.py:7 in rows"; "" if none runs.

    Args:
        own: `threading.get_ident()` of the thread that trains, which runs no pipeline.
    """
    for thread, innermost in sys._current_frames().items():
        frames = _frames(innermost)
        calls = [i for i, frame in enumerate(frames) if frame.f_code.co_filename.endswith(_CALLS_FROM_A_PIPELINE)]
        if thread != own and calls:
            # The frames that the pipeline has called come first.
            return _describe(frames[: calls[0]] or frames)
    return ""


def _frames(innermost: FrameType | None) -> list[FrameType]:
    """Returns the frames of a thread, the innermost first."""
    frames: list[FrameType] = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    return frames


def _describe(frames: list[FrameType]) -> str:
    if not frames:
        return ""
    own = [frame for frame in frames if _is_of_user(frame.f_code.co_filename)]
    frame = (own or frames)[0]
    code = frame.f_code
    text = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
    # Other letters than those of ASCII need several bytes of a datagram.
    return text.encode("ascii", "replace").decode()[:120]


def _is_of_user(file: str) -> bool:
    # AutoGraph runs a copy of the user's functions, whose lines are not those of the user's file.
    is_copy = "__autograph_generated_file" in file
    return not is_copy and not file.startswith("<frozen") and not is_installed_code(file)
