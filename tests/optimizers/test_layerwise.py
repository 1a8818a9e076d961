"""What LAMB and LARS take, refuse, keep and restore."""

from __future__ import annotations

import functools
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_compat import keras_in_use
from tfdist.optimizers import LAMB, LARS, LinearWarmup, MomentumCorrectedSGD

BOTH = pytest.mark.parametrize("kind", [LAMB, LARS])
ALL = pytest.mark.parametrize("kind", [LAMB, LARS, MomentumCorrectedSGD])


def variables(**values):
    return [tf.Variable(value, name=name) for name, value in values.items()]


def stepped(optimizer, held, gradients):
    optimizer.apply_gradients(zip(gradients, held, strict=True))
    return [variable.numpy() for variable in held]


def stepped_in_graph(optimizer, held, gradient):
    optimizer.apply_gradients([(gradient, held[0])])


def rows(count=32):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 4)).astype("float32"), rng.normal(size=(count, 1)).astype("float32")


def compiled(optimizer):
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, name="hidden"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.compile(optimizer, "mse")
    return model


class TestExclusions:
    @ALL
    def test_a_bare_string_is_refused(self, kind):
        message = (
            "expected exclude_from_weight_decay to be a list of regular expressions, received 'bias'; write ['bias']."
        )
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            kind(0.1, exclude_from_weight_decay="bias")

    @BOTH
    def test_a_string_for_adaptation_is_refused(self, kind):
        with pytest.raises(ValueError, match=r"^expected exclude_from_adaptation to be a list of regular expressions"):
            kind(0.1, exclude_from_adaptation="bias")

    def test_what_is_no_expression_is_refused(self):
        with pytest.raises(
            ValueError, match=r"^expected exclude_from_weight_decay to hold regular expressions, receiv"
        ):
            LAMB(0.1, exclude_from_weight_decay=["("])

    @ALL
    def test_an_empty_expression_is_refused(self, kind):
        message = "expected exclude_from_weight_decay to hold regular expressions, received '', which is found in every"
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            kind(0.1, exclude_from_weight_decay=["bias", ""])

    @ALL
    @pytest.mark.parametrize("patterns", [5, [None]])
    def test_what_is_no_list_of_strings_is_refused(self, kind, patterns):
        with pytest.raises(ValueError, match=r"^expected exclude_from_weight_decay to be a list .*; give strings\.$"):
            kind(0.1, exclude_from_weight_decay=patterns)

    @ALL
    def test_an_iterator_is_gone_through_once(self, kind):
        optimizer = kind(0.1, weight_decay=0.1, exclude_from_weight_decay=map(re.escape, ["bias"]))
        assert optimizer.get_config()["exclude_from_weight_decay"] == ["bias"]

    @ALL
    def test_the_method_of_keras_excludes_as_well(self, kind):
        held = variables(kernel=[1.0], bias=[1.0], gamma=[1.0])
        optimizer = kind(0.1, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_list=[held[2]], var_names=["bias"])
        optimizer.build(held)
        assert [optimizer.decay_of(i) for i in range(3)] == [0.5, 0.0, 0.0]
        assert optimizer.get_config()["exclude_from_weight_decay"] == ["bias"]
        with pytest.raises(ValueError, match=r"^expected exclude_from_weight_decay before the optimizer is built"):
            optimizer.exclude_from_weight_decay(var_names=["kernel"])

    @ALL
    def test_a_build_without_variables_has_nothing_to_find(self, kind):
        """As Keras 3 builds the optimizer of an .h5 file before its model."""
        kind(0.1, exclude_from_weight_decay=["bias"]).build([])

    @ALL
    def test_a_pattern_that_is_found_nowhere_is_an_error(self, kind):
        optimizer = kind(0.1, exclude_from_weight_decay=["bias", "gamma"])
        message = (
            "expected 'gamma' of exclude_from_weight_decay to be found in the path of a variable, received 2 paths "
            "without it, such as 'kernel', 'bias'; mend the pattern, or leave it out."
        )
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            optimizer.build(variables(kernel=[1.0], bias=[1.0]))

    @BOTH
    def test_an_empty_list_excludes_nothing_and_none_takes_those_of_the_decay(self, kind):
        def after(adaptation):
            held = variables(kernel=[3.0, 4.0], bias=[3.0, 4.0])
            options = {"exclude_from_weight_decay": ["bias"], "exclude_from_adaptation": adaptation}
            return stepped(kind(0.1, **options), held, [tf.constant([1.0, 2.0])] * 2)

        kernel, bias = after([])
        assert np.array_equal(kernel, bias)
        kernel, bias = after(None)
        assert not np.allclose(kernel, bias)

    def test_paths_are_those_of_the_model(self):
        model = compiled(LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay=["hidden/bias"]))
        model.fit(*rows(), verbose=0)
        assert model.optimizer._undecayed == frozenset({1})


class TestGradients:
    @ALL
    def test_a_sparse_gradient_is_the_dense_one(self, kind):
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
    def test_a_sparse_gradient_is_clipped_as_the_dense_one(self, kind, clip):
        table = np.arange(1.0, 9.0, dtype="float32").reshape(4, 2)
        sparse = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), tf.constant([1, 3, 1]), (4, 2))
        gradients = (sparse, tf.convert_to_tensor(sparse))
        # Of another size than the norms of the variables, so that LAMB feels it as well.
        others = (tf.constant([1.0, 2.0]), tf.constant([30.0, 1.0]))
        found = []
        for gradient in gradients:
            optimizer, held = kind(0.1, weight_decay=0.01, **clip), variables(table=table, other=[1.0, 2.0])
            found.append([stepped(optimizer, held, [gradient, other])[0] for other in others])
        assert np.allclose(*found, rtol=1e-6)

    @ALL
    def test_a_gradient_that_is_no_number_shows_in_its_variable_and_in_no_other(self, kind):
        held = variables(one=[1.0, 2.0], other=[1.0, 2.0])
        one, other = stepped(kind(0.1), held, [tf.constant([float("nan"), 1.0]), tf.constant([1.0, 1.0])])
        assert np.isnan(one).any()
        assert np.isfinite(other).all()

    @BOTH
    def test_an_infinite_gradient_is_not_taken_for_a_small_step(self, kind):
        (found,) = stepped(kind(0.1), variables(one=[1.0, 2.0]), [tf.constant([float("inf"), 1.0])])
        assert not np.isfinite(found).all()

    def test_a_gradient_whose_norm_overflows_shows(self):
        (found,) = stepped(LARS(0.1), variables(one=[1.0, 2.0]), [tf.constant([1e20, 1.0])])
        assert not np.isfinite(found).any()

    @BOTH
    def test_a_variable_of_no_length_moves_as_without_adaptation(self, kind):
        gradient = [tf.constant([1.0, -2.0])]
        adapted = stepped(kind(0.1), variables(zero=[0.0, 0.0]), gradient)
        plain = stepped(kind(0.1, exclude_from_adaptation=["zero"]), variables(zero=[0.0, 0.0]), gradient)
        assert np.array_equal(adapted, plain)
        assert np.abs(adapted[0]).min() > 0

    @BOTH
    def test_no_gradient_and_no_decay_moves_nothing(self, kind):
        (found,) = stepped(kind(0.1), variables(one=[1.0, 2.0]), [tf.zeros([2])])
        assert found.tolist() == [1.0, 2.0]

    @pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
    @BOTH
    def test_norms_of_small_floats_are_float32(self, kind, dtype):
        """The sum of squares, 4096 * 1600, is beyond float16, and beyond what bfloat16 can add up."""
        weight, gradient = np.full([4096], 40.0, "float32"), np.full([4096], 2.0, "float32")
        held = [tf.Variable(tf.cast(weight, dtype), name="w")]
        options = {"weight_decay": 0.01} | ({"eeta": 1.0} if kind is LARS else {})
        (small,) = stepped(kind(0.1, **options), held, [tf.cast(gradient, dtype)])
        (large,) = stepped(kind(0.1, **options), variables(w=weight), [tf.constant(gradient)])
        assert np.allclose(small.astype("float32"), large, rtol=1e-2)

    @pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
    @ALL
    def test_slots_of_small_floats_are_float32(self, kind, dtype):
        """The square of 1e-3, of which LAMB keeps a thousandth, is 0 in float16 and stands still in bfloat16."""
        rng = np.random.default_rng(0)
        start, gradients = np.zeros([256], "float32"), 1e-3 * rng.normal(size=(50, 256)).astype("float32")
        gradients += 1e-3 * rng.normal(size=256).astype("float32")
        # Elements far from 0 hide in their last digits how far they moved.
        options = {"exclude_from_adaptation": []} if kind is not MomentumCorrectedSGD else {}
        found = []
        for each in (dtype, tf.float32):
            optimizer, held = kind(0.01, **options), [tf.Variable(tf.cast(start, each), name="w")]
            for gradient in gradients:
                # The same numbers for both.
                stepped(optimizer, held, [tf.cast(tf.cast(gradient, dtype), each)])
            found.append(held[0].numpy().astype("float32"))
        small, large = found
        assert np.linalg.norm(small - large) < 0.05 * np.linalg.norm(large)
        assert all(tf.as_dtype(slot.dtype) == tf.float32 for slots in optimizer._slots for slot in slots)

    def test_float64_keeps_its_digits(self):
        held = [tf.Variable(np.array([1.0, 2.0]), name="w")]
        (found,) = stepped(LAMB(0.25), held, [tf.constant([1.0, 1.0], tf.float64)])
        root = np.sqrt(5) / np.sqrt(2)
        assert np.allclose(found, np.array([1.0, 2.0]) - 0.25 * root, rtol=1e-7)

    @BOTH
    def test_keras_clips(self, kind):
        """A gradient of a tenth is a step of its own size where nothing is adapted to norms."""
        options = {"exclude_from_adaptation": [".*"]} | ({"epsilon": 1.0} if kind is LAMB else {})
        gradient = np.array([3.0, 4.0], "float32")
        clipped = stepped(kind(0.1, global_clipnorm=0.5, **options), variables(w=[1.0, 2.0]), [tf.constant(gradient)])
        by_hand = stepped(kind(0.1, **options), variables(w=[1.0, 2.0]), [tf.constant(gradient / 10)])
        whole = stepped(kind(0.1, **options), variables(w=[1.0, 2.0]), [tf.constant(gradient)])
        assert np.allclose(clipped, by_hand, rtol=1e-6)
        assert not np.allclose(clipped, whole, rtol=1e-3)

    @BOTH
    def test_keras_averages_the_weights(self, kind):
        optimizer, held = kind(0.1, use_ema=True, ema_momentum=0.5), variables(w=[1.0, 2.0])
        # The average starts before the first step in Keras 2, after it in Keras 3.
        average = None if keras_in_use().is_keras3 else np.array([1.0, 2.0])
        for number in range(3):
            (weight,) = stepped(optimizer, held, [tf.constant([1.0, float(number)])])
            average = weight if average is None else 0.5 * average + 0.5 * weight
        assert np.allclose(optimizer._model_variables_moving_average[0].numpy(), average, rtol=1e-6)


class TestRefusals:
    @pytest.mark.parametrize(
        ("kind", "options", "message"),
        [
            (LAMB, {"beta_1": 1.0}, "expected beta_1 to be from 0 to below 1, received 1.0"),
            (LAMB, {"beta_2": -0.1}, "expected beta_2 to be from 0 to below 1, received -0.1"),
            (LAMB, {"epsilon": 0.0}, "expected epsilon above 0, received 0.0; an element without gradient would"),
            (LAMB, {"beta_2": 1 - 1e-9}, "expected beta_2 to be from 0 to below 1, received 0.999999999"),
            (MomentumCorrectedSGD, {"weight_decay": -1.0}, "expected weight_decay to be 0 or more, received -1.0"),
            (LAMB, {"weight_decay": -0.1}, "expected weight_decay to be 0 or more, received -0.1"),
            (LAMB, {"min_trust_ratio": 2.0, "max_trust_ratio": 1.0}, "expected 0 <= min_trust_ratio < max_trust_ratio"),
            (LARS, {"momentum": 1.0}, "expected momentum to be from 0 to below 1, received 1.0"),
            (LARS, {"eeta": 0.0}, "expected eeta above 0 and epsilon of 0 or more, received 0.0 and 0.0"),
            (LARS, {"max_trust_ratio": 0.0}, "expected 0 <= min_trust_ratio < max_trust_ratio, received None and 0.0"),
            (MomentumCorrectedSGD, {"momentum": 1.5}, "expected momentum to be from 0 to below 1, received 1.5"),
        ],
    )
    def test_options_out_of_range(self, kind, options, message):
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            kind(0.1, **options)

    @BOTH
    def test_a_variable_in_shards(self, kind):
        parts = [tf.Variable([1.0], name="table/part_0"), tf.Variable([2.0], name="table/part_1")]
        from tensorflow.python.distribute.sharded_variable import ShardedVariable

        ShardedVariable(parts, name="table")
        with pytest.raises(ValueError, match=r"^expected whole variables, received 'table/part_0' in shards"):
            kind(0.1).build(parts)


def everything(kind):
    """An optimizer in which nothing is as it is by default."""
    options = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"], "clipnorm": 2.0}
    if kind is not MomentumCorrectedSGD:
        options |= {"exclude_from_adaptation": [], "min_trust_ratio": 0.1, "max_trust_ratio": 5.0}
    if kind is LAMB:
        options |= {"beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-4, "bias_correction": False}
    else:
        options |= {"momentum": 0.8, "nesterov": True}
    if kind is LARS:
        options |= {"eeta": 0.01, "epsilon": 0.1, "classic_momentum": False}
    return kind(LinearWarmup(0.1, 5, start=0.2), name="mine", **options)


class TestFiles:
    @ALL
    def test_a_config_holds_everything(self, kind):
        config = everything(kind).get_config()
        again = kind.from_config(json.loads(json.dumps(config)))
        assert again.get_config() == config
        default = kind().get_config()
        same = {key for key, value in config.items() if key in default and default[key] == value}
        # What is not set above, and what every optimizer of Keras has.
        assert same <= {
            "ema_momentum",
            "ema_overwrite_frequency",
            "global_clipnorm",
            "clipvalue",
            "gradient_accumulation_steps",
            "is_legacy_optimizer",
            "jit_compile",
            "loss_scale_factor",
            "use_ema",
        }

    @ALL
    def test_keras_reads_it_by_its_registered_name(self, kind):
        made = everything(kind)
        again = tf.keras.optimizers.deserialize(tf.keras.optimizers.serialize(made))
        assert type(again) is kind
        assert again.get_config() == made.get_config()

    @ALL
    def test_a_checkpoint_after_a_step_of_ones_own(self, kind, tmp_path):
        held, optimizer = variables(w=[1.0, 2.0]), kind(0.1)
        for _ in range(2):
            stepped(optimizer, held, [tf.constant([1.0, 1.0])])
            path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "checkpoint"))
        assert any("iteration" in name for name, _ in tf.train.list_variables(path))

    @ALL
    @pytest.mark.parametrize("way", ["keras", "checkpoint"])
    def test_training_goes_on_where_it_was(self, kind, way, tmp_path):
        x, y = rows()
        whole, first = compiled(everything(kind)), compiled(everything(kind))
        whole.fit(x, y, epochs=4, shuffle=False, batch_size=8, verbose=0)
        first.fit(x, y, epochs=2, shuffle=False, batch_size=8, verbose=0)
        if way == "keras":
            first.save(tmp_path / "model.keras")
            second = tf.keras.models.load_model(tmp_path / "model.keras")
        else:
            path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(str(tmp_path / "checkpoint"))
            second = compiled(everything(kind))
            second.optimizer.build(second.trainable_variables)
            tf.train.Checkpoint(model=second, optimizer=second.optimizer).restore(path).assert_consumed()
        assert int(second.optimizer.iterations) == 8
        second.fit(x, y, epochs=2, shuffle=False, batch_size=8, verbose=0)
        for one, other in zip(second.get_weights(), whole.get_weights(), strict=True):
            assert np.array_equal(one, other)

    def test_a_config_of_addons_is_read(self):
        config = {
            "name": "LAMB",
            "learning_rate": 0.01,
            "decay": 0.0,
            "beta_1": 0.9,
            "beta_2": 0.999,
            "epsilon": 1e-6,
            "weight_decay_rate": 0.1,
            "exclude_from_weight_decay": ["bias"],
            "exclude_from_layer_adaptation": [],
        }
        read = LAMB.from_config(config)
        assert read.weight_decay == 0.1
        # There an empty list means: as for the decay.
        assert read.exclude_from_adaptation is None
        with pytest.raises(
            ValueError, match=r"^expected no decay of the learning rate in a config, received one; give"
        ):
            LAMB.from_config({**config, "decay": 0.1})

    @ALL
    def test_a_config_of_the_other_keras_is_read(self, kind):
        config = everything(kind).get_config()
        # As the other one writes it.
        theirs = {"loss_scale_factor": None, "gradient_accumulation_steps": None}
        ours = {"is_legacy_optimizer": False, "jit_compile": False}
        if keras_in_use().is_keras3:
            theirs, ours = ours, theirs
        other = {key: value for key, value in config.items() if key not in ours} | theirs
        assert kind.from_config(other).get_config() == config

    @pytest.mark.skipif(keras_in_use().is_keras3, reason="Keras 3 has what Keras 2 wrote down")
    @ALL
    def test_what_keras_2_lacks_is_refused(self, kind):
        config = {**kind(0.1).get_config(), "gradient_accumulation_steps": 4}
        with pytest.raises(ValueError, match=r"^expected no gradient_accumulation_steps in a config, received 4"):
            kind.from_config(config)


@pytest.mark.skipif(keras_in_use().is_keras3, reason="only Keras 2 compiles the step of each variable by itself")
@ALL
def test_what_keras_2_compiles_by_itself_has_the_rate_of_each_step(kind):
    """It does so by default where there is a GPU."""
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


def test_a_loss_scale_optimizer_leaves_out_a_step_that_is_no_number():
    inner = LAMB(0.1)
    scaled = tf.keras.mixed_precision.LossScaleOptimizer(inner)
    held = variables(w=[1.0, 2.0])
    if keras_in_use().is_keras3:
        scaled.build(held)
        scaled.apply([tf.constant([float("nan"), 1.0])], held)
    else:
        tf.function(lambda: scaled.apply_gradients([(tf.constant([float("nan"), 1.0]), held[0])]))()
    assert held[0].numpy().tolist() == [1.0, 2.0]
