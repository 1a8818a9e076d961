"""Names of compressions, as used by flags and by AllReduceOptions(compression="topk:0.01")."""

from __future__ import annotations

from collections.abc import Callable

from tfdist.allreduce.compression.base import Compression
from tfdist.allreduce.compression.error_feedback import ErrorFeedback
from tfdist.allreduce.compression.half import BF16, FP16
from tfdist.allreduce.compression.powersgd import PowerSGD
from tfdist.allreduce.compression.threshold import Threshold
from tfdist.allreduce.compression.topk import TopK

_PLAIN: dict[str, Callable[[], Compression]] = {"fp16": FP16, "bf16": BF16}
# These names may be followed by a colon and a number, and stand for a compression with error feedback.
_WITH_NUMBER: dict[str, tuple[Callable[..., Compression], type]] = {
    "topk": (TopK, float),
    "threshold": (Threshold, float),
    "powersgd": (PowerSGD, int),
}
COMPRESSIONS = ("none", *_PLAIN, *_WITH_NUMBER)


def compression_from_name(text: str) -> Compression | None:
    """Returns the compression of a name; None for "none".

    Args:
        text: none, fp16, bf16, topk, threshold or powersgd. The last three have error feedback, and may be followed by
            a colon and their density, tau or rank.

    Raises:
        ValueError: if the name is unknown, or if the compression refuses the number.

    Example:
        >>> from tfdist.allreduce.compression import compression_from_name
        >>> compression_from_name("powersgd:2")
        ErrorFeedback(inner=PowerSGD(rank=2))
    """
    name, colon, number = text.partition(":")
    if name not in COMPRESSIONS or (colon and name not in _WITH_NUMBER):
        raise ValueError(
            f"expected all_reduce.compression to be one of {', '.join(COMPRESSIONS)}, received {text!r}; "
            "write for example topk:0.01 for a density of 0.01."
        )
    if name in _PLAIN:
        return _PLAIN[name]()
    if name == "none":
        return None
    make, kind = _WITH_NUMBER[name]
    if not colon:
        return ErrorFeedback(make())
    try:
        value = kind(number)
    except ValueError:
        what = "whole number" if kind is int else "number"
        raise ValueError(
            f"expected a {what} after the colon of all_reduce.compression, received {text!r}; "
            f"write {name} for the default."
        ) from None
    return ErrorFeedback(make(value))
