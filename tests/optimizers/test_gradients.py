"""Steps with unusual gradients: sparse, clipped, NaN, infinite, zero, float16 and bfloat16."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.cases import ALL, BOTH, stepped, variables
from tfdist.keras_compat import keras_in_use
from tfdist.optimizers import LAMB, LARS, LinearWarmup, MomentumCorrectedSGD


@ALL
def test_a_sparse_gradient_makes_the_step_of_the_dense_gradient(kind):
    table = np.arange(1.0, 9.0, dtype="float32").reshape(4, 2)
    sparse = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), tf.constant([1, 3, 1]), (4, 2))
    dense = tf.constant([[0.0, 0.0], [6.0, 8.0], [0.0, 0.0], [3.0, 4.0]])
    found = []
    for gradient in (sparse, dense):
        optimizer, held = kind(0.1, weight_decay=0.01), variables(table=table)
        found.append([stepped(optimizer, held, [gradient])[0] for _ in range(3)])
    assert np.array_equal(*found)
    assert not np.array_equal(found[0][0], table)


@ALL
@pytest.mark.parametrize("clip", [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}, {"clipvalue": 2.0}])
def test_a_sparse_gradient_is_clipped_as_the_dense_gradient(kind, clip):
    table = np.arange(1.0, 9.0, dtype="float32").reshape(4, 2)
    sparse = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), tf.constant([1, 3, 1]), (4, 2))
    gradients = (sparse, tf.convert_to_tensor(sparse))
    # These gradients are much larger than the norms of the variables, so that clipping changes the step of LAMB too.
    others = (tf.constant([1.0, 2.0]), tf.constant([30.0, 1.0]))
    found = []
    for gradient in gradients:
        optimizer, held = kind(0.1, weight_decay=0.01, **clip), variables(table=table, other=[1.0, 2.0])
        found.append([stepped(optimizer, held, [gradient, other])[0] for other in others])
    assert np.allclose(*found, rtol=1e-6)


@ALL
def test_a_nan_gradient_makes_its_variable_nan_and_no_other(kind):
    held = variables(one=[1.0, 2.0], other=[1.0, 2.0])
    one, other = stepped(kind(0.1), held, [tf.constant([float("nan"), 1.0]), tf.constant([1.0, 1.0])])
    assert np.isnan(one).any()
    assert np.isfinite(other).all()


@BOTH
def test_an_infinite_gradient_is_not_mistaken_for_a_small_step(kind):
    (found,) = stepped(kind(0.1), variables(one=[1.0, 2.0]), [tf.constant([float("inf"), 1.0])])
    assert not np.isfinite(found).all()


def test_a_gradient_whose_norm_overflows_makes_the_variable_nan_or_infinite():
    (found,) = stepped(LARS(0.1), variables(one=[1.0, 2.0]), [tf.constant([1e20, 1.0])])
    assert not np.isfinite(found).any()


@BOTH
def test_a_variable_of_zeros_moves_as_without_adaptation(kind):
    gradient = [tf.constant([1.0, -2.0])]
    adapted = stepped(kind(0.1), variables(zero=[0.0, 0.0]), gradient)
    plain = stepped(kind(0.1, exclude_from_adaptation=["zero"]), variables(zero=[0.0, 0.0]), gradient)
    assert np.array_equal(adapted, plain)
    assert np.abs(adapted[0]).min() > 0


@BOTH
def test_a_zero_gradient_without_decay_moves_nothing(kind):
    (found,) = stepped(kind(0.1), variables(one=[1.0, 2.0]), [tf.zeros([2])])
    assert found.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@BOTH
def test_norms_of_small_floats_are_computed_in_float32(kind, dtype):
    """The sum of squares is 4096 * 1600, which overflows float16. In bfloat16, it is not exact enough."""
    weight, gradient = np.full([4096], 40.0, "float32"), np.full([4096], 2.0, "float32")
    held = [tf.Variable(tf.cast(weight, dtype), name="w")]
    options = {"weight_decay": 0.01} | ({"eeta": 1.0} if kind is LARS else {})
    (small,) = stepped(kind(0.1, **options), held, [tf.cast(gradient, dtype)])
    (large,) = stepped(kind(0.1, **options), variables(w=weight), [tf.constant(gradient)])
    assert np.allclose(small.astype("float32"), large, rtol=1e-2)


@pytest.mark.parametrize("dtype", [tf.float16, pytest.param(tf.bfloat16, marks=pytest.mark.full)])
@ALL
def test_slots_of_small_floats_are_float32(kind, dtype):
    """LAMB adds a thousandth of the square of 1e-3, which is 0 in float16 and lost to rounding in bfloat16."""
    rng = np.random.default_rng(0)
    start, gradients = np.zeros([256], "float32"), 1e-3 * rng.normal(size=(50, 256)).astype("float32")
    gradients += 1e-3 * rng.normal(size=256).astype("float32")
    # The variable starts at 0, since small changes of elements far from 0 would be lost to rounding.
    options = {"exclude_from_adaptation": []} if kind is not MomentumCorrectedSGD else {}
    found = []
    for each in (dtype, tf.float32):
        optimizer, held = kind(0.01, **options), [tf.Variable(tf.cast(start, each), name="w")]
        for gradient in gradients:
            # Both optimizers get the same numbers.
            stepped(optimizer, held, [tf.cast(tf.cast(gradient, dtype), each)])
        found.append(held[0].numpy().astype("float32"))
    small, large = found
    assert np.linalg.norm(small - large) < 0.05 * np.linalg.norm(large)
    assert all(tf.as_dtype(slot.dtype) == tf.float32 for slots in optimizer._slots for slot in slots)


def test_float64_keeps_its_digits():
    held = [tf.Variable(np.array([1.0, 2.0]), name="w")]
    (found,) = stepped(LAMB(0.25), held, [tf.constant([1.0, 1.0], tf.float64)])
    root = np.sqrt(5) / np.sqrt(2)
    assert np.allclose(found, np.array([1.0, 2.0]) - 0.25 * root, rtol=1e-7)


@BOTH
def test_keras_clips_the_gradient(kind):
    """Adaptation is off, so that a tenth of the gradient makes another step than the whole gradient."""
    options = {"exclude_from_adaptation": [".*"]} | ({"epsilon": 1.0} if kind is LAMB else {})
    gradient = np.array([3.0, 4.0], "float32")
    clipped = stepped(kind(0.1, global_clipnorm=0.5, **options), variables(w=[1.0, 2.0]), [tf.constant(gradient)])
    divided = stepped(kind(0.1, **options), variables(w=[1.0, 2.0]), [tf.constant(gradient / 10)])
    whole = stepped(kind(0.1, **options), variables(w=[1.0, 2.0]), [tf.constant(gradient)])
    assert np.allclose(clipped, divided, rtol=1e-6)
    assert not np.allclose(clipped, whole, rtol=1e-3)


@BOTH
def test_keras_averages_the_weights(kind):
    optimizer, held = kind(0.1, use_ema=True, ema_momentum=0.5), variables(w=[1.0, 2.0])
    # The average starts with the weights before the first step in Keras 2, and after the first step in Keras 3.
    average = None if keras_in_use().is_keras3 else np.array([1.0, 2.0])
    for number in range(3):
        (weight,) = stepped(optimizer, held, [tf.constant([1.0, float(number)])])
        average = weight if average is None else 0.5 * average + 0.5 * weight
    assert np.allclose(optimizer._model_variables_moving_average[0].numpy(), average, rtol=1e-6)


def stepped_in_graph(optimizer, held, gradient):
    optimizer.apply_gradients([(gradient, held[0])])


@pytest.mark.skipif(keras_in_use().is_keras3, reason="only Keras 2 compiles the step of each variable separately")
@ALL
def test_a_step_that_keras_2_compiles_for_each_variable_uses_the_current_learning_rate(kind):
    """By default, Keras 2 compiles the step of each variable if there is a GPU."""
    found = []
    for jit_compile in (False, True):
        optimizer, held = kind(LinearWarmup(0.1, 5)), variables(w=[1.0, 2.0, 3.0])
        optimizer.jit_compile = jit_compile
        step = tf.function(functools.partial(stepped_in_graph, optimizer, held))
        for number in range(5):
            gradient = tf.constant([1.0, 2.0, 3.0])
            stepped(optimizer, held, [gradient]) if number % 2 else step(gradient)
        found.append(held[0].numpy())
    assert np.allclose(*found, rtol=1e-5)
    assert not np.allclose(found[0], [1.0, 2.0, 3.0])


def test_a_loss_scale_optimizer_skips_a_step_with_nan_gradients():
    inner = LAMB(0.1)
    scaled = tf.keras.mixed_precision.LossScaleOptimizer(inner)
    held = variables(w=[1.0, 2.0])
    if keras_in_use().is_keras3:
        scaled.build(held)
        scaled.apply([tf.constant([float("nan"), 1.0])], held)
    else:
        tf.function(lambda: scaled.apply_gradients([(tf.constant([float("nan"), 1.0]), held[0])]))()
    assert held[0].numpy().tolist() == [1.0, 2.0]
