"""What D-PSGD and CHOCO-SGD come to on the data of the oracle, computed by the simulator in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.averaging import oracle
from tfdist.averaging import Mixing, complete, exponential, one_peer_exponential, ring, simulate

STEPS = 50
MIXINGS = {"ring": ring, "exponential": exponential, "one_peer_exponential": one_peer_exponential, "complete": complete}


def trained(
    replicas: int, given: dict[str, Any], *, is_loop: bool = False, compress: Any = None, steps: int = STEPS
) -> oracle.Trained:
    """Returns what the replicas come to.

    Args:
        replicas: their number.
        given: the keywords of `program.train`.
        is_loop: whether the losses are divided by the global batch.
        compress: what arrives of a difference; None for D-PSGD.
        steps: the number of steps.
    """
    mixing = given.get("mixing", "ring")
    settings: dict[str, Any] = {
        "steps": steps,
        "optimizer": simulate.SGD(0.05, momentum=given.get("momentum", 0.0)),
        "mixing": mixing if isinstance(mixing, Mixing) else MIXINGS[mixing](replicas),
    }

    def gradient(worker: int, step: int, weights: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
        x, y = oracle.rows_of(worker, step)
        found = oracle.gradient(list(weights), x, y)
        if is_loop:
            rows = sum(len(oracle.rows_of(other, step)[0]) for other in range(replicas))
            found = [replicas * len(x) / max(rows, 1) * one for one in found]
        return found, len(x)

    if compress is None:
        result = simulate.d_psgd(gradient, oracle.first_weights(), **settings)
    else:
        settings |= {"compress": compress, "gamma": given["consensus_rate"], "known_start": True}
        result = simulate.choco_sgd(gradient, oracle.first_weights(), **settings)
    own = [[array[replica] for array in result.weights] for replica in range(replicas)]
    return oracle.Trained(own, [], result.seen)


def top_k(array: np.ndarray, density: float = 0.2) -> np.ndarray:
    """Returns what arrives of an array with TopK, which sends float32: the largest elements."""
    flat = array.astype(np.float32).ravel()
    chosen = np.argsort(-np.abs(flat), kind="stable")[: math.ceil(density * flat.size)]
    sent = np.zeros(flat.size)
    sent[chosen] = flat[chosen]
    return sent.reshape(array.shape)


def fp16(array: np.ndarray) -> np.ndarray:
    """Returns what arrives of an array with FP16."""
    return array.astype(np.float32).astype(np.float16).astype(np.float64)


def threshold(array: np.ndarray, tau: float = 0.0078125) -> np.ndarray:
    """Returns what arrives of an array with Threshold; tau is a power of 2, which is not rounded."""
    found = array.astype(np.float32)
    return np.where(np.abs(found) >= tau, np.sign(found) * tau, 0.0)
