"""Losses that layers add, losses of several outputs, and losses with their own rule for rows and time steps."""

from __future__ import annotations

from tests.conformance.case import case

_CTC = "TensorFlow computes the CTC loss in float32, also in a model in float64"


@case("add_loss alone, no compiled loss", floatx="float64")
def add_loss_alone(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit, keras, network, tf

    class Endpoint(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(tf.reduce_mean(tf.square(inputs - 1)))
            return inputs

    data = batches(UNEVEN).map(lambda x, y: x)
    return fit(compiled(run, lambda: network(hidden=[Endpoint()]), metrics=(), loss=None), data)


def _penalty(factor):
    from tests.conformance.models import keras, tf

    class Penalty(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(factor * tf.reduce_mean(tf.square(inputs)))
            return inputs

    return Penalty()


@case("add_loss beside a compiled loss", floatx="float64")
def add_loss_with_compiled_loss(run):
    from tests.conformance.models import ONE_LEFT, batches, compiled, fit_and_evaluate, network

    return fit_and_evaluate(compiled(run, lambda: network(hidden=[_penalty(0.3)])), batches(ONE_LEFT))


@case("add_loss in models within a model", floatx="float64")
def add_loss_in_nested_models(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit_and_evaluate, keras, network, tf

    class Halves(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras.Sequential([keras.layers.Dense(16), _penalty(0.2)])

        def call(self, inputs):
            outputs = self.inner(inputs)
            self.add_loss(0.1 * tf.reduce_mean(tf.abs(outputs)))
            return outputs

    def make():
        inputs = keras.layers.Input((16,))
        middle = keras.Model(inputs, _penalty(0.4)(Halves()(inputs)))
        return network(hidden=[middle])

    return fit_and_evaluate(compiled(run, make), batches(UNEVEN))


def _endpoint(run, loss_of, *, weighted=False):
    """Trains a model whose last layer takes the targets, and perhaps the weights of rows, as further inputs."""
    from tests.conformance.models import (
        BATCH,
        ONE_LEFT,
        UNEVEN,
        X,
        as_float,
        compiled,
        fit_and_evaluate,
        keras,
        np,
        sgd,
        tf,
    )

    class Endpoint(keras.layers.Layer):
        def call(self, inputs):
            targets, predictions, *weights = inputs
            self.add_loss(loss_of(targets, predictions, *weights))
            return predictions

    def make():
        x, y, w = (keras.layers.Input((size,), name=name) for name, size in (("x", 8), ("y", 1), ("w", 1)))
        predictions = keras.layers.Dense(1)(keras.layers.Dense(16, activation="tanh")(x))
        inputs = [x, y, w] if weighted else [x, y]
        return keras.Model(inputs, Endpoint()([y, predictions, *inputs[2:]]))

    x = as_float(X[: ONE_LEFT if weighted else UNEVEN])
    columns = (x, x.sum(axis=1, keepdims=True), np.linspace(0.2, 2.0, len(x), dtype=x.dtype)[:, None])
    # Keras 2 would take the tuple alone for inputs, targets and weights.
    data = tf.data.Dataset.from_tensor_slices((columns if weighted else columns[:2],)).batch(BATCH)
    # The rate is low, because the sum over 32 rows is trained as well as their mean.
    model = compiled(run, make, metrics=(), loss=None, optimizer=lambda: sgd(learning_rate=0.002))
    return fit_and_evaluate(model, data)


@case("add_loss of a Loss object that a layer calls", floatx="float64")
def endpoint_layer(run):
    from tests.conformance.models import keras

    return _endpoint(run, keras.losses.MeanSquaredError())


@case("add_loss of a Loss object with weights of rows", floatx="float64")
def endpoint_layer_with_weights(run):
    from tests.conformance.models import keras

    return _endpoint(run, keras.losses.MeanSquaredError(), weighted=True)


@case("add_loss of one value for each row", floatx="float64")
def endpoint_layer_per_row(run):
    from tests.conformance.models import keras

    # Keras adds up such a value over the rows.
    return _endpoint(run, keras.losses.MeanSquaredError(reduction="none"))


def _spoken(rows):
    """Returns a model and data for connectionist temporal classification: 6 time steps, labels of 1 to 3 characters."""
    from tests.conformance.models import BATCH, X, Y, as_float, keras, np, tf

    labels = np.stack([1 + Y[:rows], 2 - Y[:rows], 1 + np.arange(rows) % 2], axis=1)
    labels[np.arange(3)[None] > np.arange(rows)[:, None] % 3] = 0

    def make(outputs=4):
        inputs = keras.layers.Input((8,))
        frames = keras.layers.Reshape((6, 3))(keras.layers.Dense(18, activation="tanh")(inputs))
        return inputs, keras.layers.Dense(outputs)(frames)

    return make, as_float(X[:rows]), labels, lambda *columns: tf.data.Dataset.from_tensor_slices(columns).batch(BATCH)


@case("CTC loss, compiled", floatx="float64", tolerance=1e-6, why=_CTC)
def ctc_compiled(run):
    from tests.conformance.models import KERAS_3, UNEVEN, compiled, fit_and_evaluate, keras

    if not KERAS_3:
        return "Keras 2 has no CTC loss to compile"
    make, x, labels, dataset = _spoken(UNEVEN)
    model = compiled(run, lambda: keras.Model(*make()), metrics=(), loss=keras.losses.CTC())
    return fit_and_evaluate(model, dataset(x, labels))


@case("CTC loss in an endpoint layer", floatx="float64", tolerance=1e-6, why=_CTC)
def ctc_layer(run):
    from tests.conformance.models import KERAS_3, ONE_LEFT, compiled, fit_and_evaluate, keras, tf

    def costs(labels, logits):
        rows = tf.shape(labels)[0]
        lengths = tf.reduce_sum(tf.cast(labels != 0, "int32"), axis=1)
        if KERAS_3:
            frames = tf.fill([rows], 6)
            return keras.ops.ctc_loss(labels, logits, lengths, frames, mask_index=0)
        # The last class is the blank of ctc_batch_cost, and its labels begin at 0.
        frames = tf.fill([rows, 1], 6)
        return keras.backend.ctc_batch_cost(labels - 1, tf.nn.softmax(logits), frames, lengths[:, None])

    class Endpoint(keras.layers.Layer):
        def call(self, inputs):
            labels, logits = inputs
            self.add_loss(tf.reduce_mean(costs(labels, logits)))
            return logits

    make, x, labels, dataset = _spoken(ONE_LEFT)

    def whole():
        inputs, logits = make()
        targets = keras.layers.Input((3,), dtype="int64")
        return keras.Model([inputs, targets], Endpoint()([targets, logits]))

    return fit_and_evaluate(compiled(run, whole, metrics=(), loss=None), dataset((x, labels)))


@case("losses as a dict, with loss_weights", floatx="float64")
def loss_dict_with_weights(run):
    from tests.conformance.models import (
        BATCH,
        UNEVEN,
        X,
        Y,
        as_float,
        compiled,
        cross_entropy,
        fit_and_evaluate,
        keras,
        tf,
    )

    def make():
        inputs = keras.layers.Input((8,))
        hidden = keras.layers.Dense(16, activation="tanh")(inputs)
        outputs = {
            "total": keras.layers.Dense(1, name="total")(hidden),
            "sign": keras.layers.Dense(2, name="sign")(hidden),
        }
        return keras.Model(inputs, outputs)

    model = compiled(
        run,
        make,
        metrics=(),
        loss={"total": "mse", "sign": cross_entropy()},
        loss_weights={"total": 0.3, "sign": 1.7},
    )
    x = as_float(X[:UNEVEN])
    labels = {"total": x.sum(axis=1, keepdims=True), "sign": Y[:UNEVEN]}
    return fit_and_evaluate(model, tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH))


@case("a loss function that returns the mean of the batch", floatx="float64")
def scalar_loss_function(run):
    from tests.conformance.models import ONE_LEFT, compiled, fit_and_evaluate, keras, regression, tf

    def make():
        inputs = keras.layers.Input((8,))
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(16, activation="tanh")(inputs)))

    def loss(y_true, y_pred):
        return tf.reduce_mean(tf.abs(y_true - y_pred))

    return fit_and_evaluate(compiled(run, make, metrics=(), loss=loss), regression(ONE_LEFT))
