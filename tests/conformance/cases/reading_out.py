"""Evaluation, prediction, sample and class weights, metrics and logs."""

from __future__ import annotations

import numpy as np

from tests.conformance.case import case


@case("evaluate a dataset, uneven", order_free=True)
def evaluate_dataset(run):
    from tests.conformance.models import UNEVEN, batches, compiled

    return compiled(run).evaluate(batches(UNEVEN), verbose=0, return_dict=True)


@case("evaluate arrays, last batch of 1 row", order_free=True)
def evaluate_arrays(run):
    from tests.conformance.models import BATCH, X, Y, compiled

    rows = 3 * BATCH + 1
    return compiled(run).evaluate(X[:rows], Y[:rows], batch_size=BATCH, verbose=0)


@case("evaluate a dataset function", order_free=True)
def evaluate_function(run):
    from tests.conformance.models import BATCH, ROWS, compiled, from_function

    return compiled(run).evaluate(from_function(run), steps=ROWS // BATCH, verbose=0)


@case("predict a dataset, complete and in order", order_free=True)
def predict_dataset(run):
    from tests.conformance.models import UNEVEN, batches, compiled

    return compiled(run).predict(batches(UNEVEN).map(lambda x, y: x), verbose=0)


@case("predict arrays, last batch of 1 row", order_free=True)
def predict_arrays(run):
    from tests.conformance.models import BATCH, X, compiled

    return compiled(run).predict(X[: 3 * BATCH + 1], batch_size=BATCH, verbose=0)


@case("sample_weight")
def sample_weight(run):
    from tests.conformance.models import BATCH, ROWS, X, Y, compiled, fit

    weight = np.linspace(0.5, 1.5, ROWS, dtype="float32")
    model = compiled(run, weighted_metrics=["accuracy"])
    return fit(model, X, Y, sample_weight=weight, batch_size=BATCH, shuffle=False)


@case("sample_weight, loss divided by its sum")
def mean_with_sample_weight(run):
    from tests.conformance.models import BATCH, KERAS_3, ROWS, X, Y, compiled, cross_entropy, fit

    if not KERAS_3:
        return "Keras 2 has no such reduction"
    weight = np.linspace(0.1, 3.0, ROWS, dtype="float32")[::-1].copy()
    model = compiled(run, loss=cross_entropy(reduction="mean_with_sample_weight"))
    return fit(model, X, Y, sample_weight=weight, batch_size=BATCH, shuffle=False)


@case("class_weight")
def class_weight(run):
    from tests.conformance.models import compiled, fit

    return fit(compiled(run), class_weight={0: 0.5, 1: 2.0})


def _with_metrics(run, metrics):
    from tests.conformance.models import BATCH, UNEVEN, X, Y, compiled, fit, keras, sgd, tf

    def make():
        inputs = keras.layers.Input((8,))
        return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))

    # With a learning rate of 0 the metrics do not depend on the order in which workers take steps.
    model = compiled(
        run, make, loss="binary_crossentropy", metrics=metrics, optimizer=lambda: sgd(learning_rate=0.0, momentum=0.0)
    )
    data = tf.data.Dataset.from_tensor_slices((X[:UNEVEN], Y[:UNEVEN, None].astype("float32"))).batch(BATCH)
    result = fit(model, data)
    return {"history": result["history"], "evaluated": model.evaluate(data, verbose=0, return_dict=True)}


@case("AUC, Recall and other metrics with state", order_free=True)
def stateful_metrics(run):
    from tests.conformance.models import keras

    names = keras.metrics
    return _with_metrics(
        run,
        (
            lambda: names.AUC(name="roc"),
            lambda: names.AUC(name="pr", curve="PR"),
            lambda: names.TruePositives(name="true_positives"),
            lambda: names.Recall(name="recall"),
            lambda: names.PrecisionAtRecall(0.5, name="precision_at_recall"),
        ),
    )


@case("a metric of one's own that adds up", order_free=True)
def own_metric(run):
    from tests.conformance.models import keras, tf

    class Share(keras.metrics.Metric):
        def __init__(self, name="share", **kwargs):
            super().__init__(name=name, **kwargs)
            self.total = self.add_weight(name="total", shape=(), initializer="zeros")
            self.rows = self.add_weight(name="rows", shape=(), initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign_add(tf.reduce_sum(tf.cast(y_true, tf.float32)))
            self.rows.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

        def result(self):
            return self.total / self.rows

    return _with_metrics(run, (Share,))


@case("logs of single batches")
def batch_logs(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit, keras

    seen = []
    recorder = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append({name: float(value) for name, value in logs.items()})
    )
    fit(compiled(run), batches(UNEVEN), epochs=1, callbacks=[recorder])
    return seen


@case("validation_data during fit")
def validation_data(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit

    return fit(compiled(run), batches(), validation_data=batches(UNEVEN))


@case("predict and evaluate between epochs")
def predict_between_epochs(run):
    from tests.conformance.models import BATCH, X, compiled, fit, keras

    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(self.model.predict(X[:BATCH], batch_size=BATCH, verbose=0))

    result = fit(compiled(run), callbacks=[Look()])
    return {**result, "seen": seen}
