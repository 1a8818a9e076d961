"""Training in which the replicas do not sum their gradients at every step.

LocalSGD lets every replica train on its own for some steps. With DPSGD and ChocoSGD a replica averages its weights with
those of a few peers in each step. Staleness says what parameter servers do with gradients of old weights. The mixing
matrices say with whom a worker averages in decentralised SGD.

Example:
    >>> from tfdist.averaging import ring, spectral_gap
    >>> round(spectral_gap(ring(8)), 4)
    0.1953
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.averaging.choco_sgd import ChocoSGD
    from tfdist.averaging.counts_of import staleness_of
    from tfdist.averaging.d_psgd import DPSGD
    from tfdist.averaging.elastic import ElasticAverage
    from tfdist.averaging.local_sgd import LocalSGD
    from tfdist.averaging.mixing import (
        Mixing,
        check_doubly_stochastic,
        complete,
        exponential,
        is_symmetric,
        one_peer_exponential,
        ring,
        spectral_gap,
    )
    from tfdist.averaging.outer import Average, BlockMomentum, Nesterov, OuterRule
    from tfdist.averaging.shown_in_loops import averaged
    from tfdist.averaging.staleness import Staleness, StalenessCounts

_FILES = {
    "shown_in_loops": ("averaged",),
    "choco_sgd": ("ChocoSGD",),
    "counts_of": ("staleness_of",),
    "d_psgd": ("DPSGD",),
    "elastic": ("ElasticAverage",),
    "local_sgd": ("LocalSGD",),
    "mixing": (
        "Mixing",
        "check_doubly_stochastic",
        "complete",
        "exponential",
        "is_symmetric",
        "one_peer_exponential",
        "ring",
        "spectral_gap",
    ),
    "outer": ("Average", "BlockMomentum", "Nesterov", "OuterRule"),
    "staleness": ("Staleness", "StalenessCounts"),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}
_NEED_TENSORFLOW = ("choco_sgd", "counts_of", "d_psgd", "local_sgd", "shown_in_loops")

__all__ = [
    "Average",
    "BlockMomentum",
    "ChocoSGD",
    "DPSGD",
    "ElasticAverage",
    "LocalSGD",
    "Mixing",
    "Nesterov",
    "OuterRule",
    "Staleness",
    "StalenessCounts",
    "averaged",
    "check_doubly_stochastic",
    "complete",
    "exponential",
    "is_symmetric",
    "one_peer_exponential",
    "ring",
    "spectral_gap",
    "staleness_of",
]


def __getattr__(name: str) -> Any:
    # Lazy, because the mixing matrices, the options of staleness and the simulator need no TensorFlow.
    if name in _FILE_OF:
        if _FILE_OF[name] in _NEED_TENSORFLOW:
            importlib.import_module("tfdist._needs_tensorflow")
        return getattr(importlib.import_module(f"tfdist.averaging.{_FILE_OF[name]}"), name)
    raise AttributeError(f"module 'tfdist.averaging' has no attribute {name!r}")
