"""AllReduceOptions: one frozen value that says how gradients are reduced, whatever the strategy."""

from __future__ import annotations

import dataclasses

ALGORITHMS = ("auto", "nccl", "ring", "hierarchical_copy", "reduction_to_one_device")
COMPRESSIONS = ("none",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduceOptions:
    """How the gradients of all replicas are summed.

    Args:
        algorithm: "auto" leaves the choice to TensorFlow; "nccl" and "ring" work within and across workers, "nccl" only
            with GPUs; "hierarchical_copy" and "reduction_to_one_device" work within one process.
        num_packs: into how many packs one process's devices split the gradients ("nccl" and "hierarchical_copy" of
            the mirrored strategy); None is TensorFlow's default.
        bytes_per_pack: size in bytes at which a pack across workers is closed; None is one pack of everything.
        timeout_seconds: how long a collective across workers may take before it fails; None waits without bound.
        compression: None or "none".

    Raises:
        ValueError: for an unknown algorithm or compression, and for sizes that are not positive.

    Example:
        >>> from tfdist import AllReduceOptions
        >>> AllReduceOptions(algorithm="ring", timeout_seconds=60.0).algorithm
        'ring'
        >>> AllReduceOptions(algorithm="tree")
        Traceback (most recent call last):
        ...
        ValueError: expected all_reduce.algorithm out of auto, nccl, ring, hierarchical_copy, ...
    """

    algorithm: str = "auto"
    num_packs: int | None = None
    bytes_per_pack: int | None = None
    timeout_seconds: float | None = None
    compression: str | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(
                f"expected all_reduce.algorithm out of {', '.join(ALGORITHMS)}, received {self.algorithm!r}; "
                "choose one of them."
            )
        if self.compression is not None and self.compression not in COMPRESSIONS:
            raise ValueError(
                f"expected all_reduce.compression out of {', '.join(COMPRESSIONS)}, received {self.compression!r}; "
                "choose one of them."
            )
        if self.compression == "none":
            # One way to say it, so that options that ask for nothing compare equal.
            object.__setattr__(self, "compression", None)
        for name, kind in (("num_packs", int), ("bytes_per_pack", int), ("timeout_seconds", (int, float))):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kind) or not value > 0):
                number = "whole number" if kind is int else "number"
                raise ValueError(
                    f"expected all_reduce.{name} to be a positive {number}, received {value!r}; "
                    "leave it out for the default."
                )
