"""Data and models that the cases share. They are so small that most of the time of a cell is tracing."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.conformance.case import Run

keras = tf.keras
KERAS_3 = not keras.Model.__module__.startswith(("tf_keras", "keras.src.engine"))
BATCH = 32
ROWS = 10 * BATCH
UNEVEN = ROWS - 17
# With so many rows, the last batch has one row, and every replica but one has none.
ONE_LEFT = ROWS - BATCH + 1

_rng = np.random.default_rng(7)
X = _rng.normal(size=(ROWS, 8)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def sgd(**options: Any) -> Any:
    """Returns SGD, the default. Adam would divide a tiny gradient by its own size, and so amplify rounding errors."""
    return keras.optimizers.SGD(**{"learning_rate": 0.05, "momentum": 0.9, **options})


def cross_entropy(**options: Any) -> Any:
    """Returns the default loss."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def network(model_class: Any = None, *, hidden: Any = (), **dense_options: Any) -> Any:
    """Returns a model of two dense layers with the hidden layers between them. Call it in the scope."""
    inputs = keras.layers.Input((8,))
    x = keras.layers.Dense(16, activation="tanh", **dense_options)(inputs)
    for layer in hidden:
        x = layer(x)
    # Logits have Keras's default float type under every dtype policy.
    return (model_class or keras.Model)(inputs, keras.layers.Dense(2, dtype=keras.backend.floatx())(x))


def compiled(
    run: Run, make: Any = network, *, optimizer: Any = sgd, metrics: Any = ("accuracy",), **options: Any
) -> Any:
    """Makes and compiles a model in the scope. The initial weights are the same in every run."""
    keras.utils.set_random_seed(3)
    with run.scope():
        model = make()
        model.compile(
            optimizer=_distributed(run, optimizer()),
            **{
                "loss": cross_entropy(),
                "metrics": [metric() if callable(metric) else metric for metric in metrics] or None,
                **options,
            },
        )
    return model


def _distributed(run: Run, optimizer: Any) -> Any:
    if run.is_oracle or not run.compression:
        return optimizer
    from tfdist import AllReduceOptions
    from tfdist.optimizers import DistributedOptimizer

    return DistributedOptimizer(optimizer, all_reduce=AllReduceOptions(compression=run.compression))


def batches(rows: int = ROWS, batch: int = BATCH) -> Any:
    """Returns the rows as a tf.data.Dataset."""
    return tf.data.Dataset.from_tensor_slices((as_float(X[:rows]), Y[:rows])).batch(batch)


def regression(rows: int = UNEVEN, batch: int = BATCH) -> Any:
    """Returns the rows as a tf.data.Dataset, with the sum of each row as its target, a column."""
    inputs = as_float(X[:rows])
    return tf.data.Dataset.from_tensor_slices((inputs, inputs.sum(axis=1, keepdims=True))).batch(batch)


def as_float(values: np.ndarray) -> np.ndarray:
    """Returns an array in Keras's default float type. A train_step gets its data in the type of the dataset."""
    return values.astype(keras.backend.floatx())


def from_function(run: Run, *, repeat: bool = False) -> Any:
    """Returns a dataset with the same global batches, of which each input pipeline makes its part."""

    def dataset_fn(context: Any) -> Any:
        pipelines, own = context.num_input_pipelines, context.input_pipeline_id
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
        if context.num_replicas_in_sync == 1:
            data = data.shard(pipelines, own)
        else:
            rows = BATCH // pipelines
            data = data.map(lambda x, y: (x[own * rows : (own + 1) * rows], y[own * rows : (own + 1) * rows]))
            data = data.unbatch().batch(context.get_per_replica_batch_size(BATCH))
        return data.repeat() if repeat else data

    if run.is_oracle:
        return dataset_fn(tf.distribute.InputContext())
    return run.strategy.distribute_datasets_from_function(dataset_fn)


def weights(model: Any) -> list[Any]:
    """Returns every weight of a model. In Keras 2 the vocabulary of a layer is a weight, too, which is omitted."""
    return [np.asarray(one, dtype=float) for one in model.get_weights() if np.asarray(one).dtype.kind in "fiu"]


def trained(model: Any, history: Any) -> dict[str, Any]:
    """Returns the weights, the losses and metrics of each epoch, and the number of steps."""
    return {
        "weights": weights(model),
        "history": {name: [float(v) for v in values] for name, values in history.history.items()},
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def fit(model: Any, *data: Any, epochs: int = 2, **options: Any) -> dict[str, Any]:
    """Fits a model and returns the result of `trained`."""
    return trained(model, model.fit(*(data or (batches(),)), epochs=epochs, verbose=0, **options))


def fit_and_evaluate(model: Any, data: Any, **options: Any) -> dict[str, Any]:
    """Fits a model, evaluates it on the same data, and returns the results of both."""
    result = fit(model, data, **options)
    return {**result, "evaluated": model.evaluate(data, verbose=0, return_dict=True)}
