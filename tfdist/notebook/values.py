"""What a task sends back to the notebook: the value that its function returned, or its exception."""

from __future__ import annotations

import dataclasses
import io
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

CALL, RETURNED, FAILED = "call.pickle", "returned.pickle", "failed-*.pickle"
"""The files by which the notebook and the tasks exchange values."""


class TaskTraceback(Exception):
    """The traceback of a task as text, the cause of the exception that `run` raises.

    Args:
        task: name of the task, such as "worker 1".
        text: the traceback.

    Example:
        >>> from tfdist.notebook import TaskTraceback
        >>> print(TaskTraceback("worker 1", "Traceback ..."))
        worker 1:
        Traceback ...
    """

    def __init__(self, task: str, text: str) -> None:
        super().__init__(f"{task}:\n{text}")


@dataclasses.dataclass(frozen=True)
class Failure:
    """The exception of a task.

    Attributes:
        task: name of the task, such as "worker 1".
        seconds: when the exception was raised, by time.time().
        summary: class and message of the exception.
        text: its traceback.
        error: the exception; None if it cannot be pickled.
        attempt: how often the tasks had been restarted before.
    """

    task: str
    seconds: float
    summary: str
    text: str
    error: BaseException | None
    attempt: int = 0

    @classmethod
    def of(cls, task: str, error: BaseException, *, seconds: float, attempt: int = 0) -> Failure:
        """Returns the failure of a task that an exception has ended.

        Args:
            task: name of the task.
            error: the exception.
            seconds: when it was raised, by time.time().
            attempt: how often the tasks had been restarted before.
        """
        # The first frame is the call of the function by the program of the task.
        inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
        text = "".join(traceback.format_exception(type(error), error, inner or error.__traceback__))
        summary = "".join(traceback.format_exception_only(error)).strip()
        try:
            kept = pickle.loads(cloudpickle.dumps(error))
        except Exception:
            kept = None
        return cls(task, seconds, summary, text, kept if isinstance(kept, BaseException) else None, attempt)


class _Pickler(cloudpickle.Pickler):
    """Pickles what a function returns. The notebook shall start no TensorFlow by reading it."""

    def reducer_override(self, obj: Any) -> Any:
        if _is_history(obj):
            return _history_of, (type(obj), dict(obj.params or {}), list(obj.epoch), dict(obj.history))
        if hasattr(obj, "numpy") and hasattr(obj, "shape"):
            # Tensors and variables. Every replica has the value of the variable that it mirrors.
            return _same, (obj.numpy(),)
        if hasattr(obj, "fit") and hasattr(obj, "get_weights"):
            raise ValueError("a Keras model, which belongs to its process; save it in the function")
        return super().reducer_override(obj)


def _is_history(value: Any) -> bool:
    return type(value).__name__ == "History" and hasattr(value, "history") and hasattr(value, "epoch")


def _history_of(kind: Callable[[], Any], params: dict, epoch: list, history: dict) -> Any:
    made = kind()
    made.params, made.epoch, made.history = params, epoch, history
    return made


def _same(value: Any) -> Any:
    return value


def write_returned(path: Path, value: Any) -> None:
    """Writes what a function returned to a file.

    Args:
        path: the file.
        value: the value. A History is written without its model; tensors and variables become arrays.

    Raises:
        ValueError: if the value cannot be sent to another process.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except Exception as error:
        raise ValueError(
            "expected a function that returns numbers, arrays, texts, a History, or lists and dicts of these, received "
            f"{type(value).__name__}, which cannot be sent to the notebook ({error})."
        ) from error
    path.write_bytes(buffer.getvalue())


def guilty(failures: list[Failure]) -> Failure | None:
    """Returns the failure that came first after the last restart; the other tasks fail because of it.

    Args:
        failures: the failures of all tasks. A task that failed before a restart, and not after it, has an old one.

    Example:
        >>> from tfdist.notebook.values import Failure, guilty
        >>> first, second = (Failure(f"worker {i}", 5.0 - i, "", "", None) for i in (1, 0))
        >>> guilty([second, first]).task
        'worker 1'
    """
    return min(failures, key=lambda failure: (-failure.attempt, failure.seconds), default=None)
