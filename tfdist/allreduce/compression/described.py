"""Writes compressions as values of JSON, and reads them back."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdist.allreduce.compression.base import Compression
from tfdist.allreduce.compression.error_feedback import ErrorFeedback
from tfdist.allreduce.compression.half import BF16, FP16
from tfdist.allreduce.compression.powersgd import PowerSGD
from tfdist.allreduce.compression.threshold import Threshold
from tfdist.allreduce.compression.topk import TopK

_KNOWN: dict[str, type[Compression]] = {
    kind.__name__: kind for kind in (BF16, FP16, ErrorFeedback, PowerSGD, Threshold, TopK)
}


def described(compression: Compression | str | None) -> Any:
    """Returns a compression as values that JSON can represent.

    Args:
        compression: the compression of an AllReduceOptions.

    Example:
        >>> from tfdist.allreduce import FP16
        >>> from tfdist.allreduce.compression.described import described
        >>> described(FP16())
        {'kind': 'FP16', 'options': {}}
    """
    if not isinstance(compression, Compression):
        return compression
    options = {field.name: getattr(compression, field.name) for field in dataclasses.fields(compression)}  # type: ignore[arg-type]
    kind = type(compression)
    return {
        # The name alone stands for tfdist's own class: a user's class may have the same name.
        "kind": kind.__name__ if kind in _KNOWN.values() else f"{kind.__module__}.{kind.__qualname__}",
        "options": {
            name: described(value) if isinstance(value, Compression) else value
            for name, value in options.items()
            if isinstance(value, (Compression, str, int, float, bool, type(None)))
        },
    }


def compression_from_description(description: Any) -> Compression | str | None:
    """Returns the compression of a description.

    Args:
        description: a value that `described` has returned.

    Raises:
        ValueError: if the class of the compression is not one of tfdist.

    Example:
        >>> from tfdist.allreduce.compression.described import compression_from_description
        >>> compression_from_description({"kind": "TopK", "options": {"density": 0.1, "warmup_steps": 0}})
        TopK(density=0.1, warmup_steps=0)
    """
    if not isinstance(description, dict):
        return description
    kind = description.get("kind")
    if kind not in _KNOWN:
        raise ValueError(f"expected one of the compressions {', '.join(_KNOWN)}, received {kind!r}.")
    options = {
        name: compression_from_description(value) if isinstance(value, dict) else value
        for name, value in description["options"].items()
    }
    return _KNOWN[kind](**options)
