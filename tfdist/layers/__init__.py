"""Synchronized batch normalization: the layer, and a function that converts an existing model to it."""

import tfdist._needs_tensorflow  # noqa: F401
from tfdist.layers.convert import convert_sync_batchnorm
from tfdist.layers.sync_batch_normalization import SyncBatchNormalization

__all__ = ["SyncBatchNormalization", "convert_sync_batchnorm"]
