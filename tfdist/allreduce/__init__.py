"""The sum of gradients over replicas: its options, packs, streams and compressions."""

import importlib
from typing import TYPE_CHECKING, Any

from tfdist.allreduce.compression import (
    BF16,
    FP16,
    Compression,
    CompressionState,
    ErrorFeedback,
    Exchanged,
    PowerSGD,
    Threshold,
    TopK,
)
from tfdist.allreduce.options import AllReduceOptions

if TYPE_CHECKING:
    from tfdist.allreduce.aggregation import sum_gradients
    from tfdist.allreduce.packed import packed_all_reduce
    from tfdist.allreduce.streams import Streams
    from tfdist.allreduce.traffic import Traffic

__all__ = [
    "AllReduceOptions",
    "BF16",
    "Compression",
    "CompressionState",
    "ErrorFeedback",
    "Exchanged",
    "FP16",
    "PowerSGD",
    "Streams",
    "Threshold",
    "TopK",
    "Traffic",
    "packed_all_reduce",
    "sum_gradients",
]

# The options are plain values, which flags read without TensorFlow; these names need TensorFlow.
_WITH_TENSORFLOW = {
    "Streams": "tfdist.allreduce.streams",
    "Traffic": "tfdist.allreduce.traffic",
    "packed_all_reduce": "tfdist.allreduce.packed",
    "sum_gradients": "tfdist.allreduce.aggregation",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_TENSORFLOW:
        importlib.import_module("tfdist._needs_tensorflow")
        return getattr(importlib.import_module(_WITH_TENSORFLOW[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
