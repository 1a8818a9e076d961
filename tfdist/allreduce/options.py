"""AllReduceOptions: one frozen value that says how gradients are reduced, whatever the strategy."""

from __future__ import annotations

import dataclasses

from tfdist.allreduce.compression import COMPRESSIONS, Compression, compression_from_name

TRANSPORTS = ("auto", "tensorflow", "native")
ALGORITHMS = ("auto", "nccl", "ring", "hierarchical_copy", "reduction_to_one_device")
# Longer than the evaluation or the checkpoint that the chief may make while the other workers wait.
DEFAULT_TIMEOUT_SECONDS = 1800.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduceOptions:
    """How the gradients of all replicas are summed.

    None means "not asked for": DistributedOptimizer then takes the strategy's option, and the strategy the default.

    Args:
        algorithm: "auto" leaves the choice to the transport; the others go through TensorFlow: "ring" works across
            workers; "nccl" works with GPUs, within and across workers; "hierarchical_copy" and
            "reduction_to_one_device" work within one process.
        num_packs: into how many packs the devices of one process split the gradients ("nccl" and "hierarchical_copy" of
            the mirrored strategy); the default is 1.
        bytes_per_pack: size in bytes at which a pack is closed. The default is 2 MiB with DistributedOptimizer; without
            it, one pack holds everything that is sent across workers.
        timeout_seconds: how long a sum of gradients, or the next batch, may wait for the other workers; the default is
            1800 s. The mirrored strategy waits for nobody and refuses the option.
        compression: how DistributedOptimizer compresses gradients: a value such as ErrorFeedback(TopK(0.01)), or a
            name: fp16, bf16, topk, threshold, powersgd. The last three have error feedback, and may have their density,
            tau or rank behind a colon, as in "topk:0.01". "none" asks for no compression, also where the strategy was
            made with one; the default is no compression.
        transport: what carries sums between workers: "tensorflow", TensorFlow's own collectives; "native", the package
            tfdist-native, through shared memory and TCP; "auto", the default, takes tfdist-native where all workers
            have it, can connect and train on CPUs, unless an algorithm is named.

    Raises:
        ValueError: for an unknown algorithm, transport or compression, and for sizes that are not positive.

    Example:
        >>> from tfdist import AllReduceOptions
        >>> AllReduceOptions(algorithm="ring", timeout_seconds=60.0).algorithm
        'ring'
        >>> AllReduceOptions(algorithm="tree")
        Traceback (most recent call last):
        ...
        ValueError: expected all_reduce.algorithm to be one of auto, nccl, ring, hierarchical_copy, ...
    """

    algorithm: str = "auto"
    num_packs: int | None = None
    bytes_per_pack: int | None = None
    timeout_seconds: float | None = None
    compression: Compression | str | None = None
    transport: str = "auto"

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(
                f"expected all_reduce.algorithm to be one of {', '.join(ALGORITHMS)}, received {self.algorithm!r}."
            )
        if self.transport not in TRANSPORTS:
            raise ValueError(
                f"expected all_reduce.transport to be one of {', '.join(TRANSPORTS)}, received {self.transport!r}."
            )
        if isinstance(self.compression, str):
            # Names become values, so that options that ask for the same thing compare equal. "none" stays, since it
            # overrules a strategy's compression, which None does not.
            object.__setattr__(self, "compression", compression_from_name(self.compression) or "none")
        elif self.compression is not None and not isinstance(self.compression, Compression):
            raise ValueError(
                f"expected all_reduce.compression to be one of {', '.join(COMPRESSIONS)}, or a value of "
                f"tfdist.allreduce, received {self.compression!r}."
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
        """The compression as a value; None for no compression."""
        return self.compression if isinstance(self.compression, Compression) else None
