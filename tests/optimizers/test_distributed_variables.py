"""Which gradients belong together: several passes that make one step, and the variables that state belongs to."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.replicas import on_two_replicas

PASSES = """
def loop(model):
    @tf.function
    def step(iterator):
        def replica(batch):
            rows, values = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(rows, training=True) - values)) / 16
            variables = model.trainable_variables
            model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        strategy.run(replica, args=(next(iterator),))
    for _ in range(2):
        iterator = iter(strategy.experimental_distribute_dataset(data()))
        for _ in range(4):
            step(iterator)

with strategy.scope():
    model = make("none", backward_passes_per_step=2)
    model.fit(data(), epochs=2, verbose=0)
    say("fit", [weights(model), int(model.optimizer.iterations.numpy())])
    model = make("none", backward_passes_per_step=2)
    loop(model)
    say("loop", [weights(model), int(model.optimizer.iterations.numpy())])
"""

SETS = """
def variables_of(count):
    return [tf.Variable(tf.ones([40, 40]), name=f"v{i}") for i in range(count)]

def run(optimizer, pairs):
    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply_gradients(pairs()))
    try:
        step()
        return ""
    except Exception as error:
        return str(error)

def largest(variable):
    return float(np.abs(strategy.experimental_local_results(variable)[0].numpy() - 1).max())

with strategy.scope():
    a, b = variables_of(2)
    optimizer = DistributedOptimizer(tf.keras.optimizers.SGD(1.0), all_reduce=AllReduceOptions(compression="topk:0.01"))
    many = tf.reshape(tf.range(1600.0), [40, 40])
    run(optimizer, lambda: [(many, a), (0.0 * many, b)])
    run(optimizer, lambda: [(tf.ones_like(many), b)])
    # What is left of a's gradient is not b's.
    say("residual of another", largest(b))
    (c,) = variables_of(1)
    say("unknown", run(optimizer, lambda: [(many, c)]))

    a, b, c = variables_of(3)
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build([a, b])
    DistributedOptimizer(optimizer)
    say("one of the known", run(optimizer, lambda: [(many, a)]) + run(optimizer, lambda: [(many, b)]))

    # One pass has a gradient of the first, the other of the second, and they come in another order.
    for compression in ("none", "fp16"):
        a, b, c = variables_of(3)
        optimizer = tf.keras.optimizers.AdamW(0.1, weight_decay=0.5) if compression == "fp16" else (
            tf.keras.optimizers.SGD(1.0))
        DistributedOptimizer(
            optimizer, all_reduce=AllReduceOptions(compression=compression), backward_passes_per_step=2)
        one = tf.fill([40, 40], 0.1)
        for _ in range(2):
            run(optimizer, lambda: [(one, a), (None, b), (None, c)])
            run(optimizer, lambda: [(None, c), (one, b), (None, a)])
        say(f"in turn, {compression}", [largest(a), largest(b), largest(c)])

    for passes in (1, 2):
        used, unused = variables_of(2)
        optimizer = tf.keras.optimizers.AdamW(0.1, weight_decay=0.5)
        DistributedOptimizer(
            optimizer, all_reduce=AllReduceOptions(compression="fp16"), backward_passes_per_step=passes)
        for _ in range(passes):
            run(optimizer, lambda: [(many, used), (None, unused)])
        say(f"None, {passes}", [largest(used), largest(unused)])

    path = DistributedOptimizer(
        tf.keras.optimizers.SGD(), all_reduce=AllReduceOptions(compression="threshold:0.25"))._tfdist_hook.path
    path.build([(40, 40)], ["float32"])
    scaled = []
    for scale in (None, 1024.0):
        def replica():
            factor = 1.0 if scale is None else scale
            given = [factor * (many - 700.0) / 1000.0]
            return path.sum_gradients(given, scale=None if scale is None else tf.constant(scale))[0] / factor
        total = strategy.experimental_local_results(tf.function(strategy.run)(replica))[0]
        scaled.append(np.asarray(total, "float64").ravel().tolist())
        path.residuals()[0].restore(tf.zeros([2, 40, 40]))
    say("scaled", scaled[0] == scaled[1] and max(scaled[0]) > 0)

    @tf.function
    def unknown_shape():
        def replica():
            one = tf.ensure_shape(tf.numpy_function(lambda: np.ones([3], "float32"), [], tf.float32), None)
            return path.sum_gradients([one], indices=[7])
        return strategy.run(replica)
    try:
        unknown_shape()
    except Exception as error:
        say("shape", str(error))

    # Of another number of replicas: residuals are shared out, counts are not.
    path.residuals()[0].restore(tf.ones([4, 40, 40]))
    path._variables["steps"].restore(tf.constant([6.0, 6.0, 6.0, 6.0], tf.float64))
    residual, steps = (one.values().numpy() for one in (path.residuals()[0], path._variables["steps"]))
    say("restored", [float(residual[1, 0, 0]), float(steps[1])])
"""

PROGRAM = PASSES + SETS


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.full), 2], ids=["mirrored", "workers"])
def each(request, module_children, tmp_path_factory):
    """What each process said, on two replicas of one process and on two workers."""
    return on_two_replicas(module_children, PROGRAM, tmp_path_factory.mktemp("each"), workers=request.param)


def test_several_passes_are_one_step_on_their_batches_together(each):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 40)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((40,)), layers.Dense(64, "relu"), layers.Dense(32), layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    expected = [np.asarray(one, "float64").ravel() for one in model.get_weights()]
    for said in each:
        for key in ("fit", "loop"):
            found, iterations = said[key]
            assert iterations == 4
            for one, other in zip(found, expected, strict=True):
                assert np.abs(np.array(one) - other).max() <= 1e-5 * np.abs(other).max(), key


def test_what_is_kept_is_of_one_variable(each):
    for said in each:
        # Two replicas, each with a gradient of one.
        assert said["residual of another"] == 2.0
        assert "expected the variables that DistributedOptimizer was first given gradients of" in said["unknown"]
        assert said["one of the known"] == ""
        # The sum of two replicas, the mean of two passes; of both, whichever pass they were in.
        first, second, never = said["in turn, none"]
        assert first == pytest.approx(0.2, rel=1e-5)
        assert second == pytest.approx(0.2, rel=1e-5)
        assert never == 0.0
        first, second, never = said["in turn, fp16"]
        assert first == second > 0.1
        assert never == 0.0
        for passes in (1, 2):
            used, unused = said[f"None, {passes}"]
            assert used > 0
            assert unused == 0
        assert said["scaled"]
        assert "expected tensors of known shapes" in said["shape"]
        assert said["restored"] == [2.0, 6.0]
