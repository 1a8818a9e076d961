"""convert_sync_batchnorm keeps weights and outputs, and the converted model is saved as a plain Keras model."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

ROWS = np.random.default_rng(0).normal(size=(12, 6)).astype("float32")


@pytest.fixture
def keras():
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    return tf.keras


def sequential(keras):
    layers = keras.layers
    return keras.Sequential([layers.Input((6,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(2)])


def functional(keras):
    layers = keras.layers
    inputs = layers.Input((6,))
    shared = layers.BatchNormalization()
    first = shared(layers.Dense(4)(inputs))
    return keras.Model(inputs, layers.Dense(2)(layers.Add()([first, shared(layers.Dense(4)(inputs))])))


def nested(keras):
    inputs = keras.layers.Input((6,))
    return keras.Model(inputs, keras.layers.Dense(2)(sequential(keras)(inputs)))


def wrapped(keras):
    layers = keras.layers
    inputs = layers.Input((6,))
    steps = layers.TimeDistributed(layers.BatchNormalization())(layers.Reshape((3, 2))(inputs))
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(steps)))


def own_class(keras):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.norm = keras.layers.Dense(2), keras.layers.BatchNormalization()

        def call(self, inputs, training=None):
            return self.norm(self.dense(inputs), training=training)

    model = Own()
    model(ROWS)
    return model


@pytest.mark.parametrize(
    "make", [pytest.param(sequential, marks=pytest.mark.full), functional, nested, wrapped, own_class]
)
def test_weights_and_outputs_do_not_change(make, keras):
    from tfdist.layers import SyncBatchNormalization, convert_sync_batchnorm

    model = make(keras)
    model.compile("sgd", "mse")
    model.fit(ROWS, ROWS[:, :2], epochs=2, verbose=0)
    before, outputs, iterations = model.get_weights(), model.predict(ROWS, verbose=0), int(model.optimizer.iterations)
    converted = convert_sync_batchnorm(model)
    assert converted is model
    assert int(model.optimizer.iterations) == iterations
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))
    np.testing.assert_allclose(model.predict(ROWS, verbose=0), outputs, rtol=1e-5, atol=1e-6)
    found = [layer for layer in model._flatten_layers() if type(layer) is SyncBatchNormalization]
    assert len({id(layer) for layer in found}) == 1
    # A second conversion changes nothing.
    assert convert_sync_batchnorm(model) is model


@pytest.mark.parametrize(
    "make", [functional, *(pytest.param(make, marks=pytest.mark.full) for make in (sequential, nested, wrapped))]
)
def test_a_converted_model_trains_as_before_on_one_device(make, keras):
    from tfdist.layers import convert_sync_batchnorm

    models = [make(keras), make(keras)]
    models[1].set_weights(models[0].get_weights())
    convert_sync_batchnorm(models[1])
    for model in models:
        model.compile(keras.optimizers.SGD(0.02), "mse")
        model.fit(ROWS, ROWS[:, :2], epochs=3, batch_size=8, shuffle=False, verbose=0)
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


LOAD = """
import sys
import numpy as np
import tensorflow as tf
model = tf.keras.models.load_model(sys.argv[1])
assert not any(name.startswith("tfdist") for name in sys.modules)
print("SUM", repr(float(np.abs(model.predict(np.load(sys.argv[2]), verbose=0)).sum())))
"""


@pytest.mark.parametrize("make", [sequential, pytest.param(nested, marks=pytest.mark.full)])
def test_a_saved_model_loads_without_tfdist(make, keras, tmp_path):
    from tfdist.layers import convert_sync_batchnorm

    model = convert_sync_batchnorm(make(keras))
    model.compile("sgd", "mse")
    model.fit(ROWS, ROWS[:, :2], verbose=0)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "rows.npy", ROWS)
    text = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "model.keras"), str(tmp_path / "rows.npy")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    expected = np.abs(model.predict(ROWS, verbose=0)).sum()
    assert float(text.partition("SUM ")[2]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((5, 4, 3), {}),
        ((5, 4, 3), {"axis": 1}),
        ((2, 3, 4, 5), {}),
        ((2, 3, 4, 5), {"axis": 2}),
        ((5, 4, 3), {"dtype": "float64"}),
    ],
)
def test_running_statistics_are_those_of_the_plain_layer(shape, options, keras):
    import tensorflow as tf

    from tfdist.layers import SyncBatchNormalization, convert_sync_batchnorm

    rows = tf.constant(np.random.default_rng(0).normal(size=(6, *shape)), options.get("dtype", "float32"))
    plain = keras.layers.BatchNormalization(momentum=0.5, **options)
    converted = keras.Sequential([keras.layers.Input(shape), keras.layers.BatchNormalization(momentum=0.5, **options)])
    convert_sync_batchnorm(converted)
    layers = [plain, SyncBatchNormalization(momentum=0.5, **options), converted.layers[-1]]
    for layer in layers:
        layer(rows, training=True)
    for layer in layers[1:]:
        for name in ("moving_mean", "moving_variance"):
            one, other = (np.asarray(getattr(each, name)) for each in (layer, plain))
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_masked_steps_do_not_count(keras):
    import tensorflow as tf

    from tfdist.layers import SyncBatchNormalization

    rows = ROWS.reshape(4, 3, 6)
    mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], bool)
    layer = SyncBatchNormalization(momentum=0.0, epsilon=0.0)
    layer(tf.constant(rows), training=True, mask=tf.constant(mask))
    counted = rows[mask].astype("float64")
    np.testing.assert_allclose(np.asarray(layer.moving_mean), counted.mean(0), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(layer.moving_variance), counted.var(0), rtol=1e-5)


def test_a_frozen_layer_normalizes_by_the_running_statistics(keras):
    import tensorflow as tf

    from tfdist.layers import SyncBatchNormalization

    layer = SyncBatchNormalization()
    layer.trainable = False
    outputs = layer(tf.constant(ROWS), training=True)
    np.testing.assert_allclose(outputs, ROWS / np.sqrt(1.001), rtol=1e-5)


def test_a_batch_without_rows_does_not_change_the_running_statistics(keras):
    import tensorflow as tf

    from tfdist.layers import SyncBatchNormalization

    layer = SyncBatchNormalization()
    layer(tf.zeros([0, 6]), training=True)
    assert np.array_equal(np.asarray(layer.moving_mean), np.zeros(6))
    assert np.array_equal(np.asarray(layer.moving_variance), np.ones(6))


def test_a_model_without_batch_normalization_is_refused(keras):
    from tfdist.layers import convert_sync_batchnorm

    with pytest.raises(
        ValueError, match="expected a model with batch normalization, received the model 'plain' without it"
    ):
        convert_sync_batchnorm(keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(2)], name="plain"))


def test_a_subclass_is_refused_and_nothing_is_changed(keras):
    from tfdist.layers import SyncBatchNormalization, convert_sync_batchnorm

    class Own(keras.layers.BatchNormalization):
        pass

    first = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.layers.Input((6,)), first, Own(name="own")])
    with pytest.raises(ValueError, match="received the layer 'own' of the class Own; derive that class from"):
        convert_sync_batchnorm(model)
    assert type(first) is not SyncBatchNormalization


def test_renorm_is_refused(keras):
    from tfdist.layers import SyncBatchNormalization, convert_sync_batchnorm

    with pytest.raises(ValueError, match="received renorm"):
        SyncBatchNormalization(renorm=True)
    renormed = keras.layers.BatchNormalization(renorm=True)
    with pytest.raises(ValueError, match="received renorm"):
        convert_sync_batchnorm(keras.Sequential([keras.layers.Input((6,)), renormed]))


@pytest.mark.parametrize("options", [{"synchronized": False}, {"axis": [1, 2]}])
def test_options_that_cannot_be_honoured_are_refused(options, keras):
    from tfdist.layers import SyncBatchNormalization

    with pytest.raises(
        ValueError, match=r"^expected (synchronized=True for SyncBatchNormalization|batch normalization with one)"
    ):
        SyncBatchNormalization(**options)


def test_a_subclass_of_sync_batch_normalization_is_not_converted_and_saved_under_its_own_class(keras, tmp_path):
    from tfdist.layers import SyncBatchNormalization, convert_sync_batchnorm

    class Tenfold(SyncBatchNormalization):
        def __init__(self, factor=10.0, **options):
            super().__init__(**options)
            self.factor = factor

        def call(self, inputs, training=None, mask=None):
            return self.factor * super().call(inputs, training=training, mask=mask)

        def get_config(self):
            return {**super().get_config(), "factor": self.factor}

    layers = keras.layers
    model = keras.Sequential([layers.Input((6,)), Tenfold(8.0), layers.BatchNormalization()])
    assert type(convert_sync_batchnorm(model).layers[0]) is Tenfold
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Tenfold": Tenfold})
    assert type(again.layers[0]) is Tenfold
    assert again.layers[0].factor == 8.0
    assert np.allclose(again.predict(ROWS, verbose=0), model.predict(ROWS, verbose=0))
