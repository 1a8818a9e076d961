"""Compile under a strategy with compression: it wraps the optimizer, also inside of loss scaling."""

from __future__ import annotations

import pytest

from tests.optimizers.replicas import on_two_replicas

LOST = """
options["all_reduce"] = AllReduceOptions(compression="fp16")
strategy = tfdist.create_strategy(name, **options)
with strategy.scope():
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((40,)), layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(), "mse")
    model.fit(data(), verbose=0)
    say("wrapped", gradient_traffic(model.optimizer).steps)
    plain = tf.keras.optimizers.SGD()
    try:
        strategy.run(lambda: plain.apply_gradients([(tf.ones(v.shape), v) for v in model.trainable_variables]))
    except ValueError as error:
        say("plain", str(error))
    model.compile(DistributedOptimizer(tf.keras.optimizers.SGD()), "mse")
    model.fit(data(), verbose=0)
    say("distributed", gradient_traffic(model.optimizer).steps)
"""

# Under the strategy with compression: by compile, by hand, and by hand without compression.
WRAPPED = """
from tfdist.keras_compat.optimizers.hooked import hook_of

def sgd():
    return tf.keras.optimizers.SGD(0.05, momentum=0.9)

with strategy.scope():
    for key, optimizer in {"compile": sgd(), "by hand": DistributedOptimizer(sgd())}.items():
        model = compiled(optimizer)
        model.fit(data(), verbose=0)
        say(f"weights, {key}", weights(model))
        say(f"class, {key}", type(model.optimizer) is tf.keras.optimizers.SGD)
    hook = hook_of(optimizer)
    model = compiled(optimizer)
    say("kept", hook_of(model.optimizer) is hook)
    optimizer = DistributedOptimizer(sgd(), all_reduce=AllReduceOptions(compression="none"))
    hook = hook_of(optimizer)
    model = compiled(optimizer)
    model.fit(data(), verbose=0)
    say("uncompressed", [hook_of(model.optimizer) is hook, gradient_traffic(model.optimizer).steps])

    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    model = compiled(sgd())
    model.fit(data(), verbose=0)
    say("loss scale", [type(model.optimizer).__name__, gradient_traffic(model.optimizer).steps])
"""

PROGRAM = LOST + WRAPPED


@pytest.fixture(scope="module")
def said(module_children, tmp_path_factory):
    """What a process with two replicas said."""
    (said,) = on_two_replicas(module_children, PROGRAM, tmp_path_factory.mktemp("said"), workers=1)
    return said


def test_compression_of_the_strategy_is_honoured_by_compile_and_refused_by_an_optimizer_without(said):
    assert said["wrapped"] == 4
    assert "expected a DistributedOptimizer for all_reduce.compression, FP16()" in said["plain"]
    assert said["distributed"] == 4


def test_compile_wraps_an_optimizer_that_keeps_its_class(said):
    assert said["class, compile"]
    assert said["weights, compile"] == said["weights, by hand"]


def test_compile_leaves_a_distributed_optimizer_alone(said):
    assert said["kept"]
    assert said["uncompressed"] == [True, 0]


def test_compile_wraps_the_optimizer_inside_of_loss_scaling(said):
    kind, steps = said["loss scale"]
    assert kind.startswith("LossScaleOptimizer")
    assert steps == 4
