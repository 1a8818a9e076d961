"""Layers whose replicas work as one: synchronized batch normalization, and the converter of a model to it."""

from tfdist.layers.convert import convert_sync_batchnorm
from tfdist.layers.sync_batch_normalization import SyncBatchNormalization

__all__ = ["SyncBatchNormalization", "convert_sync_batchnorm"]
