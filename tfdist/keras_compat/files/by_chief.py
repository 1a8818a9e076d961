"""Functions that the mends of this folder share: they find models of several workers, and save on the chief only."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.saving.chief import written_by_chief
from tfdist.workers import count_workers, is_chief

# Upstream code that contains one of these words handles the chief itself.
_WORDS_FOR_WORKERS = ("should_checkpoint", "distributed_file_utils", "distribute_strategy", "is_chief")


def is_unaware_of_workers(*upstream: Any) -> bool:
    """Returns whether the source of upstream code contains none of the words for workers and the chief.

    Args:
        *upstream: modules, classes or functions.
    """
    source = "".join(inspect.getsource(one) for one in upstream)
    return not any(word in source for word in _WORDS_FOR_WORKERS)


def strategy_of_workers(model: Any) -> tf.distribute.Strategy | None:
    """Returns the strategy that a model was made under if several workers train the model, otherwise None.

    Args:
        model: a model of Keras 3 or Keras 2; the attribute with the strategy has another name in Keras 2.
    """
    strategy = getattr(model, "_distribute_strategy", None) or getattr(model, "_distribution_strategy", None)
    return strategy if count_workers(strategy) > 1 else None


def follows(model: Any) -> bool:
    """Returns whether several workers train a model and this worker is not the chief."""
    strategy = strategy_of_workers(model)
    return strategy is not None and not is_chief(strategy)


def saved_by_chief(stock: Callable) -> Callable:
    """Returns a Keras function that saves a model, changed so that several workers write only one file.

    Args:
        stock: the Keras function; it takes a model, a path or a file object, and options.
    """
    signature = inspect.signature(stock)

    def save(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of_workers(model)
        # An upload to the Hugging Face hub cannot be renamed, and an open file belongs to the caller.
        if strategy is None or not isinstance(filepath, (str, os.PathLike)) or str(filepath).startswith("hf://"):
            return stock(model, filepath, *args, **kwargs)
        path = os.fspath(filepath)
        overwrite = signature.bind(model, path, *args, **kwargs).arguments.get("overwrite", True)
        if not overwrite and not _may_overwrite(path, inspect.getmodule(stock)):
            return None
        with written_by_chief(path, strategy) as scratch:
            return stock(model, scratch, *args, **kwargs)

    return save


def exported_by_chief(stock: Callable) -> Callable:
    """Returns Model.export, changed so that several workers write only one SavedModel.

    Args:
        stock: the method.
    """
    parameters = inspect.signature(stock).parameters
    save = saved_by_chief(stock)

    def export(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if strategy_of_workers(self) is None:
            return stock(self, filepath, *args, **kwargs)
        if "verbose" in parameters and len(args) < 2:
            # Keras would print the name of the scratch folder.
            kwargs = {"verbose": False, **kwargs}
        result = save(self, filepath, *args, **kwargs)
        get_logger().info("the chief has exported the model to %r", os.fspath(filepath))
        return result

    return export


def _may_overwrite(path: str, module: Any) -> bool:
    # Keras receives a scratch name instead of `path`, and therefore cannot see that the file exists.
    if os.path.exists(path) or os.path.exists(f"{path}.index"):
        return bool(module.io_utils.ask_to_proceed_with_overwrite(path))
    return True


def logged_by_chief(stock: Callable) -> Callable:
    """Returns CSVLogger.on_train_begin, changed so that only the chief opens the file.

    Args:
        stock: the method.
    """

    def on_train_begin(self: Any, logs: Any = None) -> Any:
        if not follows(self.model):
            return stock(self, logs)
        filename, self.filename = self.filename, os.devnull
        try:
            return stock(self, logs)
        finally:
            self.filename = filename

    return on_train_begin
