"""What docs/from_addons.md says to write in place of Addons has the numbers of Addons, whose formulas are below."""

from __future__ import annotations

import numpy as np
import pytest

from tests.migration.pages import ROOT

keras = pytest.importorskip("keras", minversion="3", reason="the table is about Keras 3")

RATE, DECAY, MOMENTUM = 0.01, 0.02, 0.9
RNG = np.random.default_rng(0)
WEIGHTS, GRADIENTS = RNG.normal(size=(5, 3)), RNG.normal(size=(10, 5, 3))


def advises(text: str) -> bool:
    return f"`{text}`" in (ROOT / "docs" / "from_addons.md").read_text()


def trained(optimizer: keras.optimizers.Optimizer) -> np.ndarray:
    variable = keras.Variable(WEIGHTS, dtype="float64")
    optimizer.build([variable])
    for gradient in GRADIENTS:
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    return np.asarray(variable)


def test_decoupled_decay_of_sgdw_is_divided_by_the_rate() -> None:
    assert advises("SGD(rate, momentum=0.9, weight_decay=decay / rate)")
    weights, moment = WEIGHTS, np.zeros_like(WEIGHTS)
    for gradient in GRADIENTS:
        moment = MOMENTUM * moment - RATE * gradient
        weights = weights - DECAY * weights + moment
    given = trained(keras.optimizers.SGD(RATE, momentum=MOMENTUM, weight_decay=DECAY / RATE))
    np.testing.assert_allclose(given, weights, rtol=0, atol=1e-6)  # Keras's rate is float32
    same_argument = trained(keras.optimizers.SGD(RATE, momentum=MOMENTUM, weight_decay=DECAY))
    assert np.abs(same_argument - weights).max() > 0.01


def test_decoupled_decay_of_adamw_is_divided_by_the_rate() -> None:
    assert advises("AdamW(rate, weight_decay=decay / rate)")
    weights, first, second = WEIGHTS, np.zeros_like(WEIGHTS), np.zeros_like(WEIGHTS)
    for step, gradient in enumerate(GRADIENTS, 1):
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        rate = RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        weights = weights - DECAY * weights - rate * first / (np.sqrt(second) + 1e-7)
    given = trained(keras.optimizers.AdamW(RATE, weight_decay=DECAY / RATE))
    np.testing.assert_allclose(given, weights, rtol=0, atol=1e-5)  # Keras's powers of beta are float32
    assert np.abs(trained(keras.optimizers.AdamW(RATE, weight_decay=DECAY)) - weights).max() > 0.01


def test_averages_begin_with_the_first_step_and_replace_the_weights_at_the_end() -> None:
    assert advises("assign_average_vars")
    weights, average = WEIGHTS, None
    for gradient in GRADIENTS:
        weights = weights - RATE * gradient
        average = weights if average is None else 0.99 * average + 0.01 * weights
    optimizer, variable = keras.optimizers.SGD(RATE, use_ema=True), keras.Variable(WEIGHTS, dtype="float64")
    for gradient in GRADIENTS:
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    np.testing.assert_allclose(np.asarray(variable), weights, rtol=1e-6)
    optimizer.finalize_variable_values([variable])  # the end of `fit`
    np.testing.assert_allclose(np.asarray(variable), average, rtol=1e-6)


def test_the_focal_loss_needs_class_balancing_and_the_size_of_the_last_axis() -> None:
    assert advises("BinaryFocalCrossentropy(apply_class_balancing=True)")
    given, labels = RNG.uniform(0.01, 0.99, (6, 4)), RNG.uniform(size=(6, 4)) > 0.5
    right = np.where(labels, given, 1 - given)
    addons = (np.where(labels, 0.25, 0.75) * (1 - right) ** 2 * -np.log(right)).sum(-1).mean()
    balanced = keras.losses.BinaryFocalCrossentropy(apply_class_balancing=True, dtype="float64")
    assert 4 * float(balanced(labels.astype("float64"), given)) == pytest.approx(addons, rel=1e-5)
    assert abs(float(keras.losses.BinaryFocalCrossentropy()(labels.astype("float64"), given)) / addons - 1) > 0.1


def test_gelu_is_approximated() -> None:
    assert advises("gelu(x, approximate=True)")
    x = RNG.normal(size=9)
    addons = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(np.asarray(keras.activations.gelu(x, approximate=True)), addons, rtol=1e-6, atol=1e-7)
    assert np.abs(np.asarray(keras.activations.gelu(x)) - addons).max() > 1e-5


def test_attention_takes_the_number_of_heads_first() -> None:
    assert advises("MultiHeadAttention(num_heads=8, key_dim=64)")
    layer = keras.layers.MultiHeadAttention(64, 8)
    assert (layer.num_heads, layer.key_dim) == (64, 8)


def test_sparsemax_of_keras_is_no_distribution() -> None:
    """Fails when Keras has corrected the function: the page may name it again then."""
    assert advises("sparsemax(x)")
    assert np.abs(np.asarray(keras.activations.sparsemax(RNG.normal(size=(9, 5)))).sum(-1) - 1).max() > 0.1
