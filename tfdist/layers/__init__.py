"""Synchronized batch normalization: the layer, and a function that converts an existing model to it."""

from tfdist.layers.convert import convert_sync_batchnorm
from tfdist.layers.sync_batch_normalization import SyncBatchNormalization

__all__ = ["SyncBatchNormalization", "convert_sync_batchnorm"]
