"""Lets a training whose workers train on their own end after the same step on all of them.

Between meetings the logs of a batch are those of the worker. A callback that ends the training by them, such as
TerminateOnNaN, ends it on one worker, and the others would wait at the next meeting. Here the worker goes on until all
workers look whether one of them has asked for the end: at a meeting, but not more often than every 100 steps, and at
the end of an epoch.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any

from tfdist._log import get_logger
from tfdist.keras_compat.optimizers.hooked import hook_of_local_steps
from tfdist.keras_compat.resume.callbacks import LastCallback
from tfdist.workers import count_workers, exchange

# The workers look together at most this often within an epoch, so that it costs nothing.
_STEPS_BETWEEN = 100


@dataclasses.dataclass
class _Asked:
    """Whether this worker has asked for the end, whether all workers end, and after which step they last looked."""

    here: bool = False
    by_all: bool = False
    looked_at: int = 0


_asked: weakref.WeakKeyDictionary[Any, _Asked] = weakref.WeakKeyDictionary()


def stop_on_every_worker(model: Any) -> None:
    """Ends the training after this step; called by a callback after the same step on every worker.

    Args:
        model: the model that is trained.
    """
    model.stop_training = True
    _asked.setdefault(model, _Asked()).by_all = True


def begin_to_train(model: Any) -> None:
    """Forgets what was asked in an earlier training.

    Args:
        model: the model that is trained.
    """
    _asked.pop(model, None)


def ending_together(stock: Callable, *, is_epoch: bool, model_of: Callable[[Any], Any]) -> Callable:
    """Returns the method of a list of callbacks that is called at the end of a batch or an epoch, with the mend.

    Args:
        stock: the method.
        is_epoch: whether an epoch ends.
        model_of: returns the model of a list of callbacks.
    """

    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = model_of(self)
        hook = hook_of_local_steps(model)
        if hook is None or count_workers(model.distribute_strategy) == 1:
            return stock(self, *args, **kwargs)
        # A training that is resumed ends after the step after which it had ended on all workers.
        is_resumed = any(isinstance(one, LastCallback) and one.hides_step for one in self.callbacks)
        result = stock(self, *args, **kwargs)
        if is_resumed:
            return result
        asked = _asked.setdefault(model, _Asked())
        if model.stop_training and not asked.here and not asked.by_all and not is_epoch:
            asked.here = True
            get_logger().warning("this worker ends the training, which goes on until all workers look together")
        asked.here = asked.here or bool(model.stop_training)
        if asked.by_all:
            return result
        met_at = hook.last_meeting()
        if is_epoch or (met_at is not None and met_at >= asked.looked_at + _STEPS_BETWEEN):
            rows = exchange(
                model.distribute_strategy, [int(asked.here)], dtype="int64", to="look whether the training ends"
            )
            asked.by_all = any(row[0] for row in rows)
            asked.looked_at = asked.looked_at if met_at is None else met_at
        model.stop_training = asked.by_all
        return result

    return method
