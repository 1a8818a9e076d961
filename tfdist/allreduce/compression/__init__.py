"""Compressions of gradients, one per file, each with its paper.

A compression is a plain value; TensorFlow is imported when gradients are sent.
"""

from tfdist.allreduce.compression.base import Compression, CompressionState, Exchanged
from tfdist.allreduce.compression.error_feedback import ErrorFeedback
from tfdist.allreduce.compression.half import BF16, FP16
from tfdist.allreduce.compression.named import COMPRESSIONS, compression_from_name
from tfdist.allreduce.compression.powersgd import PowerSGD
from tfdist.allreduce.compression.threshold import Threshold
from tfdist.allreduce.compression.topk import TopK

__all__ = [
    "BF16",
    "COMPRESSIONS",
    "Compression",
    "CompressionState",
    "ErrorFeedback",
    "Exchanged",
    "FP16",
    "PowerSGD",
    "Threshold",
    "TopK",
    "compression_from_name",
]
