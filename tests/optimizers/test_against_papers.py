"""A hundred steps of each optimizer, compared with float64 NumPy that is written from the papers."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers import reference
from tfdist.optimizers import LAMB, LARS, MomentumCorrectedSGD

STEPS = 100
SHAPES = st.lists(st.lists(st.integers(1, 6), max_size=4).map(tuple), min_size=1, max_size=3)
RATES = st.floats(1e-4, 0.05)
DECAYS = st.sampled_from([0.0, 1e-4, 0.1])
BOUNDS = st.sampled_from([(None, None), (0.1, None), (None, 2.0), (0.5, 1.5)])
MODES = st.sampled_from(["eager", "graph", "xla"])
TRIED = hypothesis.settings(max_examples=10, deadline=None, derandomize=True)


def problem(shapes, seed):
    """Returns weights and the gradients of all steps. The first weight is all zeros if the seed is even."""
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=shape).astype("float32") for shape in shapes]
    weights[0] *= seed % 2
    gradients = [[rng.normal(size=shape).astype("float32") for shape in shapes] for _ in range(STEPS)]
    return weights, gradients


def trained(optimizer, weights, gradients, rates, mode):
    variables = [tf.Variable(weight, name=f"v{i}") for i, weight in enumerate(weights)]
    optimizer.build(variables)

    def step(grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    run = step if mode == "eager" else tf.function(step, jit_compile=mode == "xla")
    for grads, rate in zip(gradients, rates, strict=True):
        optimizer.learning_rate = rate
        run([tf.constant(gradient) for gradient in grads])
    return [variable.numpy() for variable in variables]


def compare(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * max(np.abs(other).max(), 1e-3)


def exclusions(draw, count):
    """Draws the variables to exclude. Returns the exclusions as options of the optimizer and of the reference."""
    no_decay = draw(st.sets(st.integers(0, count - 1)))
    no_adaptation = draw(st.none() | st.sets(st.integers(0, count - 1)))
    options = {
        "exclude_from_weight_decay": [f"^v{i}$" for i in sorted(no_decay)],
        "exclude_from_adaptation": None if no_adaptation is None else [f"^v{i}$" for i in sorted(no_adaptation)],
    }
    return options, {"no_decay": no_decay, "no_adaptation": no_decay if no_adaptation is None else no_adaptation}


@TRIED
@hypothesis.given(shapes=SHAPES, seed=st.integers(0, 9), rate=RATES, decay=DECAYS, bounds=BOUNDS, data=st.data())
def test_lamb_makes_the_steps_of_its_paper(shapes, seed, rate, decay, bounds, data):
    shared = {
        "beta_1": data.draw(st.sampled_from([0.0, 0.5, 0.9])),
        "beta_2": data.draw(st.sampled_from([0.5, 0.98, 0.999])),
        "epsilon": data.draw(st.sampled_from([1e-6, 1e-3])),
        "bias_correction": data.draw(st.booleans()),
        "weight_decay": decay,
    }
    options, excluded = exclusions(data.draw, len(shapes))
    weights, gradients = problem(shapes, seed)
    rates = [rate * (1 + step / STEPS) for step in range(STEPS)]
    optimizer = LAMB(min_trust_ratio=bounds[0], max_trust_ratio=bounds[1], **shared, **options)
    found = trained(optimizer, weights, gradients, rates, data.draw(MODES))
    compare(found, reference.lamb(weights, gradients, rates, bounds=bounds, **shared, **excluded))


@TRIED
@hypothesis.given(shapes=SHAPES, seed=st.integers(0, 9), rate=RATES, decay=DECAYS, bounds=BOUNDS, data=st.data())
def test_lars_makes_the_steps_of_its_paper(shapes, seed, rate, decay, bounds, data):
    shared = {
        "momentum": data.draw(st.sampled_from([0.0, 0.5, 0.9])),
        "eeta": data.draw(st.sampled_from([0.001, 0.1])),
        "epsilon": data.draw(st.sampled_from([0.0, 1e-3])),
        "nesterov": data.draw(st.booleans()),
        "classic_momentum": data.draw(st.booleans()),
        "weight_decay": decay,
    }
    options, excluded = exclusions(data.draw, len(shapes))
    weights, gradients = problem(shapes, seed)
    rates = [rate * (1 + step / STEPS) for step in range(STEPS)]
    optimizer = LARS(min_trust_ratio=bounds[0], max_trust_ratio=bounds[1], **shared, **options)
    found = trained(optimizer, weights, gradients, rates, data.draw(MODES))
    compare(found, reference.lars(weights, gradients, rates, bounds=bounds, **shared, **excluded))


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_corrected_sgd_makes_the_steps_of_its_paper(mode, nesterov):
    weights, gradients = problem([(3, 2), (4,)], seed=1)
    rates = [0.01 if step < 50 else 0.1 for step in range(STEPS)]
    shared = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
    optimizer = MomentumCorrectedSGD(exclude_from_weight_decay=["v1"], **shared)
    found = trained(optimizer, weights, gradients, rates, mode)
    compare(found, reference.corrected_sgd(weights, gradients, rates, no_decay={1}, **shared))


def test_momentum_corrected_sgd_with_a_constant_rate_makes_the_steps_of_keras_sgd():
    weights, gradients = problem([(3, 2), (4,)], seed=1)
    rates = [0.01] * STEPS
    expected = trained(tf.keras.optimizers.SGD(0.01, momentum=0.9), weights, gradients, rates, "graph")
    compare(trained(MomentumCorrectedSGD(momentum=0.9), weights, gradients, rates, "graph"), expected)
