"""Mends `.keras` files, which keep the options of an optimizer, but not the options of DistributedOptimizer.

The mend adds a small file with the options of DistributedOptimizer to the assets of the archive. If the model is loaded
under a strategy of tfdist, the optimizer is wrapped again. Without tfdist, Keras loads the plain optimizer from the
same archive.

Source: Keras has no means to add data to a saved optimizer, so that there is no upstream issue.
"""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce.compression.described import compression_from_description
from tfdist.allreduce.hook import GradientHook
from tfdist.allreduce.options import AllReduceOptions
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.optimizers.attach import attach
from tfdist.keras_compat.optimizers.hooked import hook_of

_FILE = "distributed_optimizer.json"


def _defect_present() -> bool:
    return not any(hasattr(tf.keras.optimizers.Optimizer, name) for name in ("save_assets", "load_assets"))


def _apply() -> None:
    tf.keras.optimizers.Optimizer.save_assets = _save_assets
    tf.keras.optimizers.Optimizer.load_assets = _load_assets


def _save_assets(self: Any, directory: str) -> None:
    hook = getattr(self, "_tfdist_hook", None)
    content = None if hook is None else hook.description()
    if hook is not None and content is None and not hook.omission_is_told:
        hook.omission_is_told = True
        get_logger().warning(
            "the optimizer is saved without %s; wrap the optimizer of a model that is loaded again", hook.program
        )
    if content is None:
        return
    with open(os.path.join(directory, _FILE), "w") as file:
        json.dump(content, file)


def _load_assets(self: Any, directory: str | None) -> None:
    path = os.path.join(directory or "", _FILE)
    if directory is None or not os.path.exists(path):
        return
    with open(path) as file:
        content = json.load(file)
    try:
        compression = compression_from_description(content["compression"])
    except ValueError as error:
        get_logger().warning(
            "the optimizer was saved as a DistributedOptimizer with an unknown compression; wrap it again: %s", error
        )
        return
    asked = AllReduceOptions(bytes_per_pack=content["bytes_per_pack"], compression=compression)
    hook = GradientHook(None if asked == AllReduceOptions() else asked, content["backward_passes_per_step"])
    if hook_of(self) is None:
        attach(self, hook)
    else:
        # `compile` has wrapped the optimizer, with only the options of the strategy.
        self._tfdist_hook = hook


MEND = Mend(
    name="wrapping_is_not_saved",
    issue="not reported",
    strategies=("one_device", "mirrored", "multi_worker_mirrored"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a `.keras` file does not keep the options of DistributedOptimizer",
    without_row="stock Keras has no such options",
)
