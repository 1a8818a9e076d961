"""train_step, test_step and predict_step of one's own."""

from __future__ import annotations

from tests.conformance.case import case


def apply(optimizer, tape, loss, variables):
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def own_model(loss_of, *, weight_of=lambda loss: loss):
    """Returns a model class with a train_step, a test_step and a tracker of the loss.

    Args:
        loss_of: function of the model, the inputs, the labels and `training`, which returns the loss.
        weight_of: function of the loss, which returns the value that the tracker gets.
    """
    from tests.conformance.models import keras, tf

    class Own(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.tracker]

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = loss_of(self, *data, True)
            apply(self.optimizer, tape, loss, self.trainable_variables)
            return self.note(loss)

        def test_step(self, data):
            return self.note(loss_of(self, *data, False))

        def note(self, loss):
            self.tracker.update_state(weight_of(loss))
            return {"loss": self.tracker.result()}

    return Own


def _fitted(run, model_class, *, data=None, **options):
    from tests.conformance.models import UNEVEN, batches, compiled, fit_and_evaluate, network

    model = compiled(run, lambda: network(model_class), **{"metrics": (), **options})
    return fit_and_evaluate(model, batches(UNEVEN) if data is None else data)


@case("train_step with compute_loss and its own loss tracker", floatx="float64")
def compute_loss_and_tracker(run):
    from tests.conformance.models import keras, tf

    class Own(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tracker = keras.metrics.Mean(name="own_loss")
            self.error = keras.metrics.MeanAbsoluteError(name="own_error")

        @property
        def metrics(self):
            return [self.tracker, self.error]

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = self.compute_loss(x, y, outputs)
            apply(self.optimizer, tape, loss, self.trainable_variables)
            return self._note(loss, y, outputs)

        def test_step(self, data):
            x, y = data
            outputs = self(x, training=False)
            return self._note(self.compute_loss(x, y, outputs), y, outputs)

        def _note(self, loss, y, outputs):
            self.tracker.update_state(loss)
            self.error.update_state(tf.one_hot(y, 2), outputs)
            return {"own_loss": self.tracker.result(), "own_error": self.error.result()}

    return _fitted(run, Own)


@case("train_step with compute_loss and compute_metrics", floatx="float64")
def compute_loss_and_metrics(run):
    from tests.conformance.models import keras, tf

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = self.compute_loss(x, y, outputs)
            apply(self.optimizer, tape, loss, self.trainable_variables)
            return self.compute_metrics(x, y, outputs, sample_weight=None)

    return _fitted(run, Own, metrics=("accuracy",))


@case("train_step with tf.reduce_mean", floatx="float64")
def reduce_mean_step(run):
    from tests.conformance.models import tf

    def loss_of(model, x, y, training):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=training)))

    return _fitted(run, own_model(loss_of), loss=None)


@case("train_step with tf.reduce_mean, last batch of 1 row", floatx="float64")
def reduce_mean_step_one_row(run):
    from tests.conformance.models import ONE_LEFT, batches, tf

    def loss_of(model, x, y, training):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=training)))

    return _fitted(run, own_model(loss_of), loss=None, data=batches(ONE_LEFT))


@case("train_step that calls a Loss object", floatx="float64")
def loss_object_step(run):
    from tests.conformance.models import ONE_LEFT, batches, cross_entropy

    cross = cross_entropy()

    def loss_of(model, x, y, training):
        return cross(y, model(x, training=training))

    return _fitted(run, own_model(loss_of), loss=None, data=batches(ONE_LEFT))


@case("train_step that differentiates one loss for each row", floatx="float64")
def loss_for_each_row_step(run):
    from tests.conformance.models import sgd, tf

    def loss_of(model, x, y, training):
        # tape.gradient adds up the gradients of the rows, and the tracker averages the rows.
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=training))

    return _fitted(run, own_model(loss_of), loss=None, optimizer=lambda: sgd(learning_rate=0.005))


@case("train_step with tf.nn.compute_average_loss", floatx="float64")
def compute_average_loss_step(run):
    from tests.conformance.models import (
        ONE_LEFT,
        batches,
        compiled,
        cross_entropy,
        fit_and_evaluate,
        keras,
        network,
        tf,
    )

    cross = cross_entropy(reduction="none")

    def loss_of(model, x, y, training):
        loss = tf.nn.compute_average_loss(cross(y, model(x, training=training)))
        return loss + tf.nn.scale_regularization_loss(tf.add_n(model.losses))

    def make():
        return network(own_model(loss_of), kernel_regularizer=keras.regularizers.L2(0.1))

    return fit_and_evaluate(compiled(run, make, metrics=(), loss=None), batches(ONE_LEFT))


@case("train_step that divides by num_replicas_in_sync", floatx="float64")
def number_of_replicas_step(run):
    from tests.conformance.models import batches, cross_entropy, tf

    cross = cross_entropy(reduction="none")

    def replicas():
        return tf.distribute.get_strategy().num_replicas_in_sync

    def loss_of(model, x, y, training):
        return tf.reduce_mean(cross(y, model(x, training=training))) / replicas()

    # The program is exact only if each replica has as many rows as every other.
    model_class = own_model(loss_of, weight_of=lambda loss: loss * replicas())
    return _fitted(run, model_class, loss=None, data=batches())


@case("test_step of one's own, stock train_step", floatx="float64")
def own_test_step(run):
    from tests.conformance.models import keras, tf

    class Own(keras.Model):
        def test_step(self, data):
            x, y = data
            outputs = self(x, training=False)
            loss = self.compute_loss(x, y, outputs)
            logs = self.compute_metrics(x, y, outputs, sample_weight=None)
            return {**logs, "own": loss, "size": tf.reduce_mean(tf.abs(outputs))}

    return _fitted(run, Own, metrics=("accuracy",))


@case("predict_step of one's own", floatx="float64", order_free=True)
def own_predict_step(run):
    from tests.conformance.models import UNEVEN, batches, compiled, keras, network, tf

    class Own(keras.Model):
        def predict_step(self, data):
            outputs = self(data[0], training=False)
            return {"class": tf.cast(tf.argmax(outputs, axis=1), "int32"), "share": tf.nn.softmax(outputs)}

    predicted = compiled(run, lambda: network(Own)).predict(batches(UNEVEN), verbose=0)
    return {name: values.astype(float) for name, values in predicted.items()}


@case("train_on_batch, test_on_batch, predict_on_batch, own train_step", floatx="float64")
def own_step_on_batch(run):
    from tests.conformance.models import BATCH, X, Y, as_float, compiled, keras, network, tf, weights

    class Own(keras.Model):
        def train_step(self, data):
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs))
            apply(self.optimizer, tape, loss, self.trainable_variables)
            return {"cross": loss, **self.compute_metrics(x, y, outputs, sample_weight=None)}

    model = compiled(run, lambda: network(Own))
    # The last batch is smaller.
    parts = [slice(i * BATCH, (i + 1) * BATCH) for i in range(4)] + [slice(4 * BATCH, 4 * BATCH + 15)]
    x = as_float(X)
    trained = [model.train_on_batch(x[part], Y[part], return_dict=True) for part in parts]
    tested = [model.test_on_batch(x[part], Y[part], return_dict=True) for part in parts]
    names = [{name: float(value) for name, value in logs.items()} for logs in [*trained, *tested]]
    return {"weights": weights(model), "logs": names, "predicted": model.predict_on_batch(x[parts[-1]])}


@case("train_on_batch with a summed loss and a metric that counts", floatx="float64")
def sums_on_batch(run):
    from tests.conformance.models import BATCH, X, as_float, compiled, keras, sgd, weights

    def make():
        inputs = keras.layers.Input((8,))
        return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))

    model = compiled(
        run,
        make,
        optimizer=lambda: sgd(learning_rate=0.002),
        loss=keras.losses.BinaryCrossentropy(reduction="sum"),
        metrics=(lambda: keras.metrics.TruePositives(name="hits"),),
    )
    x = as_float(X)
    y = (x.sum(axis=1, keepdims=True) > 0).astype(x.dtype)
    # The last batch has 1 row.
    parts = [slice(i * BATCH, (i + 1) * BATCH) for i in range(4)] + [slice(4 * BATCH, 4 * BATCH + 1)]
    steps = [
        step(x[part], y[part], return_dict=True)
        for part in parts
        for step in (model.train_on_batch, model.test_on_batch)
    ]
    return {"weights": weights(model), "logs": [{name: float(v) for name, v in logs.items()} for logs in steps]}


@case("scalars that train_step returns as logs", floatx="float64")
def scalars_as_logs(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit, keras, network, tf

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = self.compute_loss(x, y, outputs)
            apply(self.optimizer, tape, loss, self.trainable_variables)
            return {"loss": loss, "size": tf.reduce_mean(tf.abs(outputs)), "right": _hits(y, outputs)}

        def test_step(self, data):
            x, y = data
            outputs = self(x, training=False)
            return {"loss": self.compute_loss(x, y, outputs), "right": _hits(y, outputs)}

    def _hits(y, outputs):
        return tf.reduce_mean(tf.cast(tf.argmax(outputs, axis=1) == y, outputs.dtype))

    model = compiled(run, lambda: network(Own), metrics=())
    seen = []
    recorder = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append({name: float(value) for name, value in logs.items()})
    )
    result = fit(model, batches(UNEVEN), callbacks=[recorder])
    return {**result, "batches": seen, "evaluated": model.evaluate(batches(UNEVEN), verbose=0, return_dict=True)}


@case("class_weight with a train_step of one's own", floatx="float64")
def class_weight_in_own_step(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit, keras, network, tf

    class Own(keras.Model):
        def train_step(self, data):
            x, y, weight = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                rows = tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs)
                loss = tf.reduce_mean(rows * tf.cast(weight, rows.dtype))
            apply(self.optimizer, tape, loss, self.trainable_variables)
            return {"cross": loss, **self.compute_metrics(x, y, outputs, sample_weight=weight)}

    model = compiled(run, lambda: network(Own), weighted_metrics=["accuracy"])
    return fit(model, batches(UNEVEN), class_weight={0: 0.5, 1: 2.0})
