"""How gradients meet: the sum over replicas, its options, and what each strategy makes of them."""

from typing import Any

from tfdist.allreduce.compression import BF16, FP16, ErrorFeedback, PowerSGD, Threshold, TopK
from tfdist.allreduce.options import AllReduceOptions

__all__ = [
    "AllReduceOptions",
    "BF16",
    "ErrorFeedback",
    "FP16",
    "PowerSGD",
    "Threshold",
    "TopK",
    "sum_gradients",
]


def __getattr__(name: str) -> Any:
    # The options are plain values that flags read without TensorFlow.
    if name == "sum_gradients":
        from tfdist.allreduce.aggregation import sum_gradients

        return sum_gradients
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
