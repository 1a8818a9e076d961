"""AllReduceOptions: one frozen value that says how gradients are reduced, whatever the strategy."""

from __future__ import annotations

import dataclasses

from tfdist.allreduce.compression import COMPRESSIONS, Compression, compression_from_name

ALGORITHMS = ("auto", "nccl", "ring", "hierarchical_copy", "reduction_to_one_device")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduceOptions:
    """How the gradients of all replicas are summed.

    Args:
        algorithm: "auto" leaves the choice to TensorFlow; "nccl" and "ring" work within and across workers, "nccl" only
            with GPUs; "hierarchical_copy" and "reduction_to_one_device" work within one process.
        num_packs: into how many packs one process's devices split the gradients ("nccl" and "hierarchical_copy" of
            the mirrored strategy); None is TensorFlow's default.
        bytes_per_pack: size in bytes at which a pack is closed; None is 2 MiB with DistributedOptimizer, and else one
            pack of everything across workers.
        timeout_seconds: how long a collective across workers may take before it fails; None waits without bound.
        compression: what is sent in the place of the gradients, done by DistributedOptimizer: a value such as
            ErrorFeedback(TopK(0.01)), or its name: none, fp16, bf16, topk, threshold, powersgd, where the last three
            have error feedback and may have their density, tau or rank behind a colon, as in "topk:0.01". None is, for
            DistributedOptimizer, what the strategy was made with, and else none.

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
    compression: Compression | str | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(
                f"expected all_reduce.algorithm out of {', '.join(ALGORITHMS)}, received {self.algorithm!r}; "
                "choose one of them."
            )
        if isinstance(self.compression, str):
            # One way to say it, so that options that ask for the same compare equal. An optimizer's "none" overrules
            # its strategy's compression, which None does not.
            object.__setattr__(self, "compression", compression_from_name(self.compression) or "none")
        elif self.compression is not None and not isinstance(self.compression, Compression):
            raise ValueError(
                f"expected all_reduce.compression out of {', '.join(COMPRESSIONS)} or a value of tfdist.allreduce, "
                f"received {self.compression!r}; choose one of them."
            )
        for name, kind in (("num_packs", int), ("bytes_per_pack", int), ("timeout_seconds", (int, float))):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kind) or not value > 0):
                number = "whole number" if kind is int else "number"
                raise ValueError(
                    f"expected all_reduce.{name} to be a positive {number}, received {value!r}; "
                    "leave it out for the default."
                )

    @property
    def compressor(self) -> Compression | None:
        """The compression as a value."""
        return self.compression if isinstance(self.compression, Compression) else None
