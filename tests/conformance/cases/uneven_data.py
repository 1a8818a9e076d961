"""Batches that cannot be divided evenly among the replicas."""

from __future__ import annotations

import numpy as np

from tests.conformance.case import case


@case("last batch smaller than the rest")
def last_batch_smaller(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit

    return fit(compiled(run), batches(UNEVEN))


@case("last batch of 3 rows")
def last_batch_of_three_rows(run):
    from tests.conformance.models import BATCH, ROWS, batches, compiled, fit

    return fit(compiled(run), batches(ROWS - BATCH + 3))


@case("last batch of 1 row: replicas that get none")
def last_batch_of_one_row(run):
    from tests.conformance.models import BATCH, ROWS, batches, compiled, fit

    return fit(compiled(run), batches(ROWS - BATCH + 1))


@case("convolutions, last batch of 1 row: replicas that get none")
def convolutions_of_no_rows(run):
    from tests.conformance.models import BATCH, ROWS, batches, compiled, fit, keras

    def make():
        inputs = keras.layers.Input((8,))
        x = keras.layers.Reshape((4, 2, 1))(inputs)
        for filters in (4, 2):
            x = keras.layers.Conv2D(filters, 2, padding="same", activation="tanh")(x)
        return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(x)))

    return fit(compiled(run, make), batches(ROWS - BATCH + 1))


@case("smaller last batch, regularizers and several outputs")
def uneven_with_regularizers(run):
    from tests.conformance.models import BATCH, UNEVEN, X, Y, compiled, cross_entropy, fit, keras, tf

    def make():
        inputs = keras.layers.Input((8,))
        hidden = keras.layers.Dense(
            16, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1), activity_regularizer="l2"
        )(inputs)
        outputs = [keras.layers.Dense(1, name="total")(hidden), keras.layers.Dense(2, name="sign")(hidden)]
        return keras.Model(inputs, outputs)

    labels = (X[:UNEVEN].sum(axis=1, keepdims=True), Y[:UNEVEN])
    data = tf.data.Dataset.from_tensor_slices((X[:UNEVEN], labels)).batch(BATCH)
    return fit(compiled(run, make, metrics=(), loss=["mse", cross_entropy()]), data)


@case("pipelines that end at different steps", per=("pipelines",))
def pipelines_end_at_different_steps(run):
    from tests.conformance.models import BATCH, KERAS_3, X, Y, compiled, fit, tf

    # The first pipeline has 10 batches and each other pipeline has 8, so only the first has rows in the last two steps.
    pipelines = run.topology.pipelines
    rows = BATCH // pipelines
    steps = [[(k * BATCH + p * rows, rows) for p in range(pipelines) if p == 0 or k < 8] for k in range(10)]
    if run.is_oracle or run.topology.strategy in ("parameter_server", "one_device"):
        chosen = [np.concatenate([np.arange(start, start + size) for start, size in step]) for step in steps]

        def whole(*_):
            ragged = tf.RaggedTensor.from_row_lengths(np.concatenate(chosen), [len(c) for c in chosen])
            order = tf.data.Dataset.from_tensor_slices(ragged)
            return order.map(lambda rows: (tf.gather(X, rows), tf.gather(Y, rows)))

        data = whole() if run.is_oracle else run.strategy.distribute_datasets_from_function(whole)
    else:

        def own(context):
            starts = [
                start for step in steps for start, _ in step if (start % BATCH) // rows == context.input_pipeline_id
            ]
            order = np.concatenate([np.arange(start, start + rows) for start in starts])
            data = tf.data.Dataset.from_tensor_slices((X[order], Y[order]))
            return data.batch(BATCH // context.num_replicas_in_sync)

        data = run.strategy.distribute_datasets_from_function(own)
    # Keras 2 needs the number of steps of a distributed dataset.
    return fit(compiled(run), data, epochs=1, steps_per_epoch=None if KERAS_3 else len(steps))


@case("masked loss, other numbers of valid steps on each replica")
def masked_loss(run):
    from tests.conformance.models import BATCH, ROWS, compiled, cross_entropy, fit, keras, tf

    rng = np.random.default_rng(9)
    tokens = rng.integers(1, 20, size=(ROWS, 6))
    # The rows in the first half of every batch are short, and those in the second half are long.
    lengths = np.where(np.arange(ROWS) % BATCH < BATCH // 2, 2, 5) + rng.integers(0, 2, size=ROWS)
    tokens[np.arange(6)[None] >= lengths[:, None]] = 0
    labels = (tokens % 3).astype("int64")

    def make():
        inputs = keras.layers.Input((6,), dtype="int64")
        embedded = keras.layers.Embedding(20, 4, mask_zero=True)(inputs)
        return keras.Model(inputs, keras.layers.Dense(3)(embedded))

    data = tf.data.Dataset.from_tensor_slices((tokens, labels)).batch(BATCH)
    return fit(compiled(run, make, metrics=("accuracy",), loss=cross_entropy()), data)
