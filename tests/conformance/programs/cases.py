"""What is compared between one device and a strategy: each case trains or reads out, and returns plain numbers.

This module knows nothing of tfdist: without a strategy it is the oracle, on stock TensorFlow and Keras.
"""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

keras = tf.keras
BATCH = 32
ROWS = 10 * BATCH
UNEVEN = ROWS - 17

rng = np.random.default_rng(7)
X = rng.normal(size=(ROWS, 8)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def adam(rate=0.01):
    return keras.optimizers.Adam(rate)


def new_model(run, *, optimizer=None, metrics=("accuracy",), model_class=None, **compile_options):
    keras.utils.set_random_seed(3)
    with run.scope():
        inputs = keras.layers.Input((8,))
        hidden = keras.layers.Dense(16, activation="tanh")(inputs)
        outputs = keras.layers.Dense(2)(hidden)
        model = (model_class or keras.Model)(inputs, outputs)
        model.compile(
            optimizer=optimizer() if optimizer else adam(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[metric() if callable(metric) else metric for metric in metrics] or None,
            **compile_options,
        )
    return model


class Run:
    """Where a case runs.

    Args:
        strategy: None for the oracle.
    """

    def __init__(self, strategy=None):
        self.strategy = strategy

    def scope(self):
        return self.strategy.scope() if self.strategy else tf.device(None)

    def dataset(self, rows=ROWS, batch=BATCH):
        return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(batch)

    def from_function(self, repeat=False):
        """The same global batches, each pipeline making its own part of them."""

        def dataset_fn(context):
            pipelines, own = context.num_input_pipelines, context.input_pipeline_id
            data = tf.data.Dataset.from_tensor_slices((X, Y))
            if context.num_replicas_in_sync == 1:
                data = data.batch(BATCH).shard(pipelines, own)
            else:
                per_replica = context.get_per_replica_batch_size(BATCH)
                rows = BATCH // pipelines
                data = data.batch(BATCH).map(
                    lambda x, y: (x[own * rows : (own + 1) * rows], y[own * rows : (own + 1) * rows])
                )
                data = data.unbatch().batch(per_replica)
            return data.repeat() if repeat else data

        if self.strategy is None:
            return dataset_fn(tf.distribute.InputContext())
        return self.strategy.distribute_datasets_from_function(dataset_fn)

    def features_from_function(self):
        data = tf.data.Dataset.from_tensor_slices(X).batch(BATCH)
        return data if self.strategy is None else self.strategy.distribute_datasets_from_function(lambda context: data)


def weights(model):
    return [weight.tolist() for weight in model.get_weights()]


def trained(model, history):
    return {
        "weights": weights(model),
        "history": {name: [float(v) for v in values] for name, values in history.history.items()},
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def fit_dataset(run):
    model = new_model(run)
    return trained(model, model.fit(run.dataset(), epochs=2, verbose=0))


def fit_steps(run):
    model = new_model(run)
    return trained(model, model.fit(run.dataset().repeat(), steps_per_epoch=7, epochs=3, verbose=0))


def fit_from_function(run):
    model = new_model(run)
    return trained(model, model.fit(run.from_function(repeat=True), steps_per_epoch=ROWS // BATCH, epochs=2, verbose=0))


def fit_distributed_dataset(run):
    model = new_model(run)
    data = run.dataset().repeat()
    if run.strategy is not None:
        data = run.strategy.experimental_distribute_dataset(data)
    return trained(model, model.fit(data, steps_per_epoch=ROWS // BATCH, epochs=2, verbose=0))


def fit_arrays(run):
    model = new_model(run)
    return trained(model, model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0))


def fit_weighted_arrays(run):
    model = new_model(run)
    weight = np.linspace(0.5, 1.5, ROWS, dtype="float32")
    return trained(model, model.fit(X, Y, sample_weight=weight, batch_size=BATCH, epochs=1, shuffle=False, verbose=0))


def fit_class_weight(run):
    model = new_model(run)
    return trained(model, model.fit(run.dataset(), class_weight={0: 0.5, 1: 2.0}, epochs=1, verbose=0))


def fit_validation(run):
    model = new_model(run)
    history = model.fit(run.dataset(), validation_data=run.dataset(UNEVEN), epochs=2, verbose=0)
    return trained(model, history)


def fit_steps_per_execution(run):
    model = new_model(run, steps_per_execution=4)
    return trained(model, model.fit(run.dataset(), epochs=2, verbose=0))


def fit_own_train_step(run):
    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - tf.one_hot(y, 2)))
                # What a custom step does on any strategy: the share of this replica in the global batch.
                share = loss / tf.distribute.get_strategy().num_replicas_in_sync
            gradients = tape.gradient(share, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"own_loss": loss}

    model = new_model(run, model_class=Own, metrics=())
    history = model.fit(run.dataset(), epochs=1, verbose=0)
    return {
        "weights": weights(model),
        "logs": sorted(history.history),
        "iterations": trained(model, history)["iterations"],
    }


def callbacks(run):
    """Which callbacks are called, how often and with what; a schedule and an early stop among them."""
    calls, logs_seen, rates = [], [], []

    class Recorder(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            calls.append(("begin", batch))

        def on_train_batch_end(self, batch, logs=None):
            calls.append(("end", batch))
            logs_seen.append({name: float(value) for name, value in logs.items()})

        def on_epoch_end(self, epoch, logs=None):
            calls.append(("epoch", epoch))
            rates.append(float(tf.convert_to_tensor(self.model.optimizer.learning_rate)))

    model = new_model(run)
    stop = keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=1)
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * 0.5**epoch)
    history = model.fit(run.dataset(), epochs=5, verbose=0, callbacks=[Recorder(), stop, schedule])
    return {**trained(model, history), "calls": calls, "batch_logs": logs_seen, "rates": rates}


def evaluate_uneven(run):
    model = new_model(run)
    result = model.evaluate(run.dataset(UNEVEN), verbose=0, return_dict=True)
    return {name: float(value) for name, value in result.items()}


def evaluate_arrays(run):
    model = new_model(run)
    return [float(value) for value in model.evaluate(X[:UNEVEN], Y[:UNEVEN], batch_size=BATCH, verbose=0)]


def evaluate_from_function(run):
    model = new_model(run)
    return [float(v) for v in model.evaluate(run.from_function(), steps=ROWS // BATCH, verbose=0)]


def predict_uneven(run):
    model = new_model(run)
    return model.predict(run.dataset(UNEVEN).map(lambda x, y: x), verbose=0).tolist()


def predict_arrays(run):
    model = new_model(run)
    return model.predict(X[:UNEVEN], batch_size=BATCH, verbose=0).tolist()


def constant_weights_metrics(run):
    """With a learning rate of 0 the metrics of an epoch do not depend on the order of steps."""
    model = new_model(run, optimizer=lambda: adam(0.0))
    return trained(model, model.fit(run.dataset(UNEVEN), epochs=2, verbose=0))


def stateful_metrics(run):
    """Metrics whose state is more than a total and a count, and one that a user wrote as Keras's documents show."""

    class OwnMean(keras.metrics.Metric):
        def __init__(self, name="own_mean", **kwargs):
            super().__init__(name=name, **kwargs)
            self.total = self.add_weight(name="total", shape=(), initializer="zeros")
            self.rows = self.add_weight(name="rows", shape=(), initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign(self.total + tf.reduce_sum(tf.cast(y_true, tf.float32)))
            self.rows.assign(self.rows + tf.cast(tf.shape(y_true)[0], tf.float32))

        def result(self):
            return self.total / self.rows

    keras.utils.set_random_seed(3)
    with run.scope():
        inputs = keras.layers.Input((8,))
        model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
        metrics = [
            keras.metrics.AUC(name="roc"),
            keras.metrics.AUC(name="pr", curve="PR"),
            keras.metrics.TruePositives(name="true_positives"),
            keras.metrics.Recall(name="recall"),
        ]
        # Keras 2 adds up what replicas assign only where a metric calls assign_add.
        if not hasattr(keras, "__internal__"):
            metrics.append(OwnMean())
        model.compile(adam(0.0), "binary_crossentropy", metrics=metrics)
    data = tf.data.Dataset.from_tensor_slices((X[:UNEVEN], Y[:UNEVEN, None].astype("float32"))).batch(BATCH)
    history = model.fit(data, epochs=2, verbose=0)
    result = model.evaluate(data, verbose=0, return_dict=True)
    return {**trained(model, history), "evaluated": {name: float(value) for name, value in result.items()}}


def predict_in_callback(run):
    """Predicts and evaluates between epochs, and goes on."""
    seen = []

    class Predict(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(self.model.predict(X[:BATCH], batch_size=BATCH, verbose=0).tolist())

    model = new_model(run)
    history = model.fit(run.dataset(), epochs=2, verbose=0, callbacks=[Predict()])
    return {**trained(model, history), "seen": seen}


def on_batch(run):
    model = new_model(run)
    fitted = model.fit(run.dataset(), epochs=1, verbose=0)
    losses = [float(model.train_on_batch(X[:BATCH], Y[:BATCH])[0]) for _ in range(3)]
    tested = [float(value) for value in model.test_on_batch(X[:BATCH], Y[:BATCH])]
    return {**trained(model, fitted), "losses": losses, "tested": tested}


def predict_from_function(run):
    return new_model(run).predict(run.features_from_function(), steps=2, verbose=0).tolist()


def string_features(run):
    words = np.array(["a", "b", "c", "d"])[np.arange(ROWS) % 4]
    labels = (np.arange(ROWS) % 4 > 1).astype("float32")
    keras.utils.set_random_seed(3)
    with run.scope():
        lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c", "d"])
        inputs = keras.layers.Input((1,), dtype=tf.string if hasattr(keras, "__internal__") else "string")
        hidden = keras.layers.Flatten()(keras.layers.Embedding(5, 4)(lookup(inputs)))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(adam(0.05), keras.losses.BinaryCrossentropy(from_logits=True))
    data = tf.data.Dataset.from_tensor_slices((words[:, None], labels[:, None])).batch(BATCH)
    return trained(model, model.fit(data, epochs=2, verbose=0))


ALL = {
    case.__name__: case
    for case in (
        fit_dataset,
        fit_steps,
        fit_from_function,
        fit_distributed_dataset,
        fit_arrays,
        fit_weighted_arrays,
        fit_class_weight,
        fit_validation,
        fit_steps_per_execution,
        fit_own_train_step,
        callbacks,
        evaluate_uneven,
        evaluate_arrays,
        evaluate_from_function,
        predict_uneven,
        predict_arrays,
        constant_weights_metrics,
        stateful_metrics,
        predict_in_callback,
        on_batch,
        predict_from_function,
        string_features,
    )
}


def run_all(strategy, names):
    """Returns what each case gives, an error as its text."""
    results = {}
    for name in names:
        try:
            results[name] = ALL[name](Run(strategy))
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
            print(f"case {name}: {results[name]['error'][:2000]}", flush=True)
    return results


def rank():
    """Of a worker among workers; 0 elsewhere."""
    import json

    return json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0)
