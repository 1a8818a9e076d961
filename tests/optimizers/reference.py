"""LAMB, LARS and SGD in float64 NumPy, written from the papers and independent of tfdist."""

from __future__ import annotations

import numpy as np


def _clipped(ratio, bounds):
    low, high = bounds
    if low is not None:
        ratio = max(ratio, low)
    return ratio if high is None else min(ratio, high)


def lamb(
    weights,
    gradients,
    rates,
    *,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-6,
    weight_decay=0.0,
    bias_correction=True,
    bounds=(None, None),
    no_decay=(),
    no_adaptation=(),
):
    """Returns the weights after LAMB, algorithm 2 of arXiv:1904.00962. gradients[step][i] belongs to variable i."""
    weights = [np.asarray(w, np.float64).copy() for w in weights]
    first = [np.zeros_like(w) for w in weights]
    second = [np.zeros_like(w) for w in weights]
    for step, (grads, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        for i, gradient in enumerate(grads):
            gradient = np.asarray(gradient, np.float64)
            first[i] = beta_1 * first[i] + (1 - beta_1) * gradient
            second[i] = beta_2 * second[i] + (1 - beta_2) * gradient**2
            m, v = first[i], second[i]
            if bias_correction:
                m, v = m / (1 - beta_1**step), v / (1 - beta_2**step)
            direction = m / (np.sqrt(v) + epsilon)
            if i not in no_decay:
                direction = direction + weight_decay * weights[i]
            ratio = 1.0
            if i not in no_adaptation:
                size, length = np.sqrt((weights[i] ** 2).sum()), np.sqrt((direction**2).sum())
                ratio = _clipped(size / length if size > 0 and length > 0 else 1.0, bounds)
            weights[i] = weights[i] - rate * ratio * direction
    return weights


def lars(
    weights,
    gradients,
    rates,
    *,
    momentum=0.9,
    eeta=0.001,
    epsilon=0.0,
    weight_decay=0.0,
    nesterov=False,
    classic_momentum=True,
    bounds=(None, None),
    no_decay=(),
    no_adaptation=(),
):
    """Returns the weights after LARS, arXiv:1708.03888. As in MLPerf, the learning rate is inside classic momentum."""
    weights = [np.asarray(w, np.float64).copy() for w in weights]
    speed = [np.zeros_like(w) for w in weights]
    for grads, rate in zip(gradients, rates, strict=True):
        for i, gradient in enumerate(grads):
            gradient = np.asarray(gradient, np.float64)
            decay = 0.0 if i in no_decay else weight_decay
            decayed = gradient + decay * weights[i]
            if classic_momentum:
                measured, extra = gradient, decay * np.sqrt((weights[i] ** 2).sum())
            else:
                speed[i] = momentum * speed[i] + decayed
                direction = decayed + momentum * speed[i] if nesterov else speed[i]
                measured, extra = direction, 0.0
            ratio = 1.0
            if i not in no_adaptation:
                size, length = np.sqrt((weights[i] ** 2).sum()), np.sqrt((measured**2).sum())
                ratio = _clipped(eeta * size / (length + extra + epsilon) if size > 0 and length > 0 else 1.0, bounds)
            if classic_momentum:
                speed[i] = momentum * speed[i] + rate * ratio * decayed
                direction = rate * ratio * decayed + momentum * speed[i] if nesterov else speed[i]
                weights[i] = weights[i] - direction
            else:
                weights[i] = weights[i] - rate * ratio * direction
    return weights


def corrected_sgd(weights, gradients, rates, *, momentum=0.9, weight_decay=0.0, nesterov=False, no_decay=()):
    """Returns the weights after SGD with the learning rate outside of the momentum, equation 9 of arXiv:1706.02677."""
    weights = [np.asarray(w, np.float64).copy() for w in weights]
    speed = [np.zeros_like(w) for w in weights]
    for grads, rate in zip(gradients, rates, strict=True):
        for i, gradient in enumerate(grads):
            decayed = np.asarray(gradient, np.float64) + (0.0 if i in no_decay else weight_decay) * weights[i]
            speed[i] = momentum * speed[i] + decayed
            weights[i] = weights[i] - rate * (decayed + momentum * speed[i] if nesterov else speed[i])
    return weights
