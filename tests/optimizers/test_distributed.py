"""DistributedOptimizer: what it keeps, what it sends, where it stops; its numbers are in tests/conformance."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from tfdist import AllReduceOptions
from tfdist.allreduce import ErrorFeedback, TopK
from tfdist.allreduce.options_of import options_of_path
from tfdist.keras_compat import keras_in_use
from tfdist.optimizers import LAMB, DistributedOptimizer, gradient_traffic

PREAMBLE = """
import json, os, sys
import numpy as np
import tfdist
from tfdist import AllReduceOptions

name, devices = sys.argv[1], int(sys.argv[2])
options = {"devices": devices} if devices else {}
strategy = tfdist.create_strategy(name, **options)
import tensorflow as tf
from tfdist.optimizers import DistributedOptimizer, gradient_traffic

rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 40)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")

def make(compression, optimizer=None, **options):
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((40,)), layers.Dense(64, "relu"), layers.Dense(32), layers.Dense(1)])
    inner = optimizer or tf.keras.optimizers.SGD(0.05, momentum=0.9)
    model.compile(DistributedOptimizer(inner, all_reduce=AllReduceOptions(compression=compression), **options), "mse")
    return model

def data(batch=16):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).with_options(options)

def say(key, value):
    print("RESULT", json.dumps({"key": key, "value": value}), flush=True)

def weights(model):
    return [np.asarray(w, "float64").ravel().tolist() for w in model.get_weights()]
"""


@pytest.fixture
def on(children, tmp_path):
    """Runs a program on two replicas, in one process or in two, and returns what each process said."""

    def run(program, workers):
        (tmp_path / "program.py").write_text(PREAMBLE + program)
        if workers == 1:
            texts = [children.start_command(str(tmp_path / "program.py"), "mirrored", "2", str(tmp_path)).end()]
            assert texts[0].code == 0, texts[0].err
            logs = [texts[0].out]
        else:
            place = tmp_path / "logs"
            command = ["-m", "tfdist", "launch", "--workers", "2", "--timeout-seconds", "100", "--log-dir", str(place)]
            finished = children.start_command(
                *command, str(tmp_path / "program.py"), "multi_worker_mirrored", "0", str(tmp_path)
            ).end()
            assert finished.code == 0, finished.err
            logs = [path.read_text() for path in sorted(place.glob("*worker*"))]
            assert len(logs) == 2
        found = []
        for text in logs:
            said = [json.loads(line.partition("RESULT ")[2]) for line in text.splitlines() if "RESULT " in line]
            found.append({one["key"]: one["value"] for one in said})
        return found

    return run


RESUME = """
from tfdist.keras_compat import keras_in_use
folder = sys.argv[3]
for compression in ("topk:0.05", "powersgd:2"):
    with strategy.scope():
        model = make(compression)
        model.fit(data(), epochs=2, verbose=0)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        # Each worker writes, as TensorFlow asks for; the values are those of all replicas.
        rank = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
        own = os.path.join(folder, f"{compression.replace(':', '-')}-{rank}")
        path = checkpoint.save(own)
        model.fit(data(), epochs=2, verbose=0)
        whole = weights(model)
        other = make(compression)
        checkpoint = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
        if compression.startswith("topk"):
            # Restored before there is anything to restore to.
            status = checkpoint.restore(path)
            other.fit(data(), epochs=2, verbose=0)
        else:
            other.fit(data(), epochs=1, verbose=0)
            checkpoint.restore(path).assert_consumed()
            other.fit(data(), epochs=2, verbose=0)
        say(compression, [whole, weights(other)])
        residuals = model.optimizer._tfdist_hook.path.residuals()
        say(compression + " residual", residuals[0].values().numpy().tolist())
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_residuals_of_every_replica_survive_a_checkpoint(workers, on):
    for said in on(RESUME, workers):
        for compression in ("topk:0.05", "powersgd:2"):
            whole, resumed = said[compression]
            assert whole == resumed
            one, other = said[f"{compression} residual"]
            assert np.any(one)
            assert one != other


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


@pytest.mark.parametrize("workers", [1, 2])
def test_several_passes_are_one_step_on_their_batches_together(workers, on):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 40)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((40,)), layers.Dense(64, "relu"), layers.Dense(32), layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    expected = [np.asarray(one, "float64").ravel() for one in model.get_weights()]
    for said in on(PASSES, workers):
        for key in ("fit", "loop"):
            found, iterations = said[key]
            assert iterations == 4
            for one, other in zip(found, expected, strict=True):
                assert np.abs(np.array(one) - other).max() <= 1e-5 * np.abs(other).max(), key


SPOILT = """
def kept(hook):
    return {place: residual.values().numpy().tolist() for place, residual in hook.path.residuals().items()}

with strategy.scope():
    model = make("topk:0.05")
    model.fit(data(), epochs=1, verbose=0)
    hook = model.optimizer._tfdist_hook
    before = kept(hook)

    @tf.function
    def step(scale):
        def replica():
            context = tf.distribute.get_replica_context()
            second = tf.cast(context.replica_id_in_sync_group, tf.float32)
            # Infinite on the second replica alone, in a place that top-k would not choose first.
            gradients = [tf.ones(v.shape) + tf.where(second > 0, scale, 0.0) for v in model.trainable_variables]
            return hook.path.sum_gradients(gradients)
        return strategy.run(replica)

    sums = step(np.float32(np.inf))
    after = kept(hook)
    finite = bool(np.isfinite(sum(float(tf.reduce_sum(strategy.experimental_local_results(s)[0])) for s in sums)))
    say("spoilt", [finite, before == after])
    step(np.float32(1.0))
    say("fine", kept(hook) != after)
    traffic = gradient_traffic(model.optimizer)
    say("traffic", [traffic.steps, traffic.sent, traffic.uncompressed])
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_that_is_not_finite_leaves_residuals_alone(workers, on):
    for said in on(SPOILT, workers):
        assert said["spoilt"] == [False, True]
        assert said["fine"]
        steps, sent, uncompressed = said["traffic"]
        # The spoilt one was sent as well.
        assert steps == 6
        # Two replicas: each sends what it has once. 129 of 4,737 elements are in tensors too small to compress.
        kept = sum(int(np.ceil(0.05 * size)) for size in (40 * 64, 64 * 32))
        assert sent == steps * (4 * 129 + 8 * (kept + 1))
        assert uncompressed == steps * 4 * 4737


CHANGED = """
with strategy.scope():
    model = make("topk:0.1")
    model.fit(data(), verbose=0)
    saved = tf.train.Checkpoint(optimizer=model.optimizer).save(sys.argv[3] + "/checkpoint")
    for compression in ("powersgd:2", "powersgd:1", "none"):
        other = make(compression)
        tf.train.Checkpoint(optimizer=other.optimizer).restore(saved)
        other.fit(data(), verbose=0)
        saved = tf.train.Checkpoint(optimizer=other.optimizer).save(sys.argv[3] + "/checkpoint")
        say(compression, gradient_traffic(other.optimizer).steps)
"""


def test_residuals_go_on_under_another_compression(children, tmp_path):
    finished = children.run(PREAMBLE + CHANGED, "mirrored", "2", str(tmp_path))
    said = [line.removeprefix("RESULT ") for line in finished.out.splitlines() if line.startswith("RESULT")]
    assert [json.loads(line)["value"] for line in said] == [8, 12, 0], finished.err


SMALL = """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((40,)), tf.keras.layers.Dense(1)])
    options = AllReduceOptions(compression="topk")
    model.compile(DistributedOptimizer(tf.keras.optimizers.SGD(), all_reduce=options), "mse")
    model.fit(data(), verbose=0)
    traffic = gradient_traffic(model.optimizer)
    say("traffic", [traffic.steps, traffic.sent, traffic.uncompressed])
"""


def test_what_is_too_small_to_compress_is_counted(on):
    (said,) = on(SMALL, 1)
    # 41 elements, of which each of two replicas sends as many bytes as they have.
    assert said["traffic"] == [4, 4 * 41 * 4, 4 * 41 * 4]


SPARSE = """
with strategy.scope():
    losses = {}
    for compression in ("none", "fp16"):
        tf.keras.utils.set_random_seed(0)
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [layers.Input((3,), dtype="int32"), layers.Embedding(50, 8), layers.Flatten(), layers.Dense(1)])
        all_reduce = AllReduceOptions(compression=compression)
        model.compile(DistributedOptimizer(tf.keras.optimizers.SGD(0.1), all_reduce=all_reduce), "mse")
        tokens = np.random.default_rng(0).integers(0, 50, size=(64, 3)).astype("int32")
        rows = tf.data.Dataset.from_tensor_slices((tokens, y)).batch(16)
        model.fit(rows, epochs=2, verbose=0)
        say(compression, weights(model))
"""


def test_sparse_gradients_go_as_they_are(on):
    tokens = np.random.default_rng(0).integers(0, 50, size=(64, 3)).astype("int32")
    rng = np.random.default_rng(0)
    rng.normal(size=(64, 40))
    y = rng.normal(size=(64, 1)).astype("float32")
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Input((3,), dtype="int32"), layers.Embedding(50, 8), layers.Flatten(), layers.Dense(1)]
    )
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    model.fit(tokens, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    (said,) = on(SPARSE, 1)
    for compression, tolerance in (("none", 1e-5), ("fp16", 5e-3)):
        for one, other in zip(said[compression], model.get_weights(), strict=True):
            assert np.abs(np.array(one) - other.ravel()).max() <= tolerance * np.abs(other).max()


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


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_kept_is_of_one_variable(workers, on):
    for said in on(SETS, workers):
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


SCALED = """
from tfdist.keras_compat import keras_in_use
with strategy.scope():
    outer = tf.keras.optimizers.LossScaleOptimizer if keras_in_use().is_keras3 else (
        tf.keras.mixed_precision.LossScaleOptimizer)
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((40,)), layers.Dense(64, "relu"), layers.Dense(32), layers.Dense(1)])
    optimizer = outer(tf.keras.optimizers.SGD(0.05))
    assert DistributedOptimizer(optimizer, all_reduce=AllReduceOptions(compression="topk:0.05")) is optimizer
    model.compile(optimizer, "mse")
    model.fit(data(), verbose=0)
    say("steps", gradient_traffic(model.optimizer).steps)
"""


def test_a_loss_scale_optimizer_can_be_wrapped_too(on):
    (said,) = on(SCALED, 1)
    assert said["steps"] == 4


def test_a_strategy_that_tfdist_has_not_made_is_refused(children):
    program = PREAMBLE.replace("tfdist.create_strategy(name, **options)", "None") + (
        "cpus = [tf.config.LogicalDeviceConfiguration()] * 2\n"
        "tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], cpus)\n"
        "strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])\n"
        "with strategy.scope():\n"
        "    v = tf.Variable([1.0])\n"
        "    optimizer = DistributedOptimizer(tf.keras.optimizers.SGD())\n"
        "    try:\n"
        "        tf.function(strategy.run)(lambda: optimizer.apply_gradients([(tf.ones([1]), v)]) and None)\n"
        "    except Exception as error:\n"
        "        print('REFUSED', error)\n"
    )
    finished = children.run(program, "mirrored", "2")
    assert "expected a strategy of tfdist for DistributedOptimizer" in finished.out, finished.err


LOST = """
with strategy.scope():
    pass
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


def test_compression_of_the_strategy_is_honoured_by_compile_and_refused_by_an_optimizer_without(on):
    (said,) = on(LOST, 1)
    assert said["wrapped"] == 4
    assert "expected a DistributedOptimizer for all_reduce.compression, FP16()" in said["plain"]
    assert said["distributed"] == 4


@pytest.mark.parametrize("make", [lambda: tf.keras.optimizers.Adam(0.01), lambda: LAMB(0.01, weight_decay=0.1)])
def test_it_is_saved_as_what_it_was(make, tmp_path):
    rows = np.ones((4, 3), np.float32)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((3,)), layers.Dense(1)])
    plain, optimizer = make(), make()
    assert DistributedOptimizer(optimizer) is optimizer
    assert isinstance(optimizer, type(plain))
    one, other = (tf.keras.optimizers.serialize(each) for each in (optimizer, plain))
    # Keras counts the names of optimizers.
    one["config"]["name"] = other["config"]["name"]
    assert one == other
    model.compile(optimizer, "mse")
    model.fit(rows, rows[:, :1], epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(plain)
    assert int(loaded.optimizer.iterations.numpy()) == 3
    # Its variables are those of the plain one, with their values.
    for one, other in zip(loaded.optimizer.variables, optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_one_device_has_nothing_to_send():
    rows = np.random.default_rng(0).normal(size=(8, 64)).astype("float32")
    found = []
    for wrap in (
        lambda one: one,
        lambda one: DistributedOptimizer(one, all_reduce=AllReduceOptions(compression="topk")),
    ):
        tf.keras.utils.set_random_seed(0)
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Input((64,)), layers.Dense(64), layers.Dense(1)])
        model.compile(wrap(tf.keras.optimizers.SGD(0.1)), "mse")
        model.fit(rows, rows[:, :1], epochs=2, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(keras_in_use().is_keras3, reason="Keras 3 has no legacy optimizers")
def test_legacy_optimizers_too(children, tmp_path):
    program = PREAMBLE + (
        "with strategy.scope():\n"
        "    model = make('topk:0.05', tf.keras.optimizers.legacy.SGD(0.05))\n"
        "    model.fit(data(), verbose=0)\n"
        "    print('STEPS', gradient_traffic(model.optimizer).steps)\n"
        "    path = tf.train.Checkpoint(optimizer=model.optimizer).save(sys.argv[3])\n"
        "    print('KEPT', [name for name, _ in tf.train.list_variables(path) if 'residual0' in name])\n"
        "    model.save(sys.argv[3] + '-saved', save_format='tf')\n"
    )
    finished = children.run(program, "mirrored", "2", str(tmp_path / "files"))
    assert finished.code == 0, finished.err
    assert "STEPS 4" in finished.out
    assert "KEPT ['optimizer/_tfdist_hook/path/_variables/residual0/.ATTRIBUTES/values']" in finished.out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DistributedOptimizer("adam"), "expected an optimizer of"),
        (
            lambda: DistributedOptimizer(DistributedOptimizer(LAMB(0.1))),
            "expected an optimizer that is not distributed",
        ),
        (
            lambda: DistributedOptimizer(LAMB(0.1), backward_passes_per_step=0),
            "expected backward_passes_per_step to be a whole number, at least 1, received 0",
        ),
        (lambda: gradient_traffic(LAMB(0.1)), "expected a distributed optimizer, received LAMB; wrap it first."),
        (
            lambda: options_of_path(AllReduceOptions(algorithm="ring"), AllReduceOptions()),
            "expected all_reduce.algorithm of DistributedOptimizer to be the strategy's, 'auto', received 'ring'",
        ),
        (
            lambda: options_of_path(AllReduceOptions(timeout_seconds=3.0), AllReduceOptions()),
            "expected all_reduce.timeout_seconds of DistributedOptimizer to be the strategy's, None, received 3.0",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_options_are_the_strategys_unless_given():
    of_strategy = AllReduceOptions(algorithm="ring", compression="fp16")
    assert options_of_path(None, of_strategy) is of_strategy
    asked = AllReduceOptions(algorithm="ring", compression=ErrorFeedback(TopK(0.1)))
    assert options_of_path(asked, of_strategy) == asked
    together = AllReduceOptions(algorithm="ring", compression="fp16", bytes_per_pack=100)
    assert options_of_path(AllReduceOptions(bytes_per_pack=100), of_strategy) == together
    assert options_of_path(AllReduceOptions(compression="none"), of_strategy).compressor is None


def test_central_storage_is_refused(children):
    program = PREAMBLE + (
        "with strategy.scope():\n"
        "    model = make('none')\n"
        "    try:\n"
        "        model.fit(data(), verbose=0)\n"
        "    except ValueError as error:\n"
        "        print('REFUSED', error)\n"
    )
    finished = children.run(program, "central_storage", "2")
    assert "REFUSED" in finished.out, finished.err
    assert "expected one of the strategies one_device, mirrored and multi_worker_mirrored" in finished.out
