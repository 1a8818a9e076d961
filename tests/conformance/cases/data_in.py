"""The forms of training data that fit accepts."""

from __future__ import annotations

import numpy as np

from tests.conformance.case import case


@case("arrays", order_free=False)
def arrays(run):
    from tests.conformance.models import BATCH, X, Y, compiled, fit

    return fit(compiled(run), X, Y, batch_size=BATCH, shuffle=False)


@case("tf.data, finite")
def tf_data(run):
    from tests.conformance.models import compiled, fit

    return fit(compiled(run))


@case("tf.data repeated, with steps_per_epoch")
def tf_data_steps(run):
    from tests.conformance.models import batches, compiled, fit

    return fit(compiled(run), batches().repeat(), steps_per_epoch=7, epochs=3)


@case("distribute_datasets_from_function")
def dataset_function(run):
    from tests.conformance.models import BATCH, ROWS, compiled, fit, from_function

    return fit(compiled(run), from_function(run, repeat=True), steps_per_epoch=ROWS // BATCH)


@case("experimental_distribute_dataset")
def distributed_dataset(run):
    from tests.conformance.models import BATCH, ROWS, batches, compiled, fit

    data = batches().repeat()
    if not run.is_oracle:
        data = run.strategy.experimental_distribute_dataset(data)
    return fit(compiled(run), data, steps_per_epoch=ROWS // BATCH)


@case("inputs as a dict")
def dict_inputs(run):
    from tests.conformance.models import BATCH, X, Y, compiled, fit, keras, tf

    def make():
        inputs = {name: keras.layers.Input((4,), name=name) for name in ("left", "right")}
        joined = keras.layers.Concatenate()([inputs["left"], inputs["right"]])
        hidden = keras.layers.Dense(16, activation="tanh")(joined)
        return keras.Model(inputs, keras.layers.Dense(2)(hidden))

    data = tf.data.Dataset.from_tensor_slices(({"left": X[:, :4], "right": X[:, 4:]}, Y)).batch(BATCH)
    return fit(compiled(run, make), data)


@case("several inputs and outputs")
def several_inputs_and_outputs(run):
    from tests.conformance.models import BATCH, X, Y, compiled, cross_entropy, fit, keras, tf

    def make():
        left, right = keras.layers.Input((4,), name="left"), keras.layers.Input((4,), name="right")
        hidden = keras.layers.Dense(16, activation="tanh")(keras.layers.Concatenate()([left, right]))
        total = keras.layers.Dense(1, name="total")(hidden)
        sign = keras.layers.Dense(2, name="sign")(hidden)
        return keras.Model([left, right], [total, sign])

    model = compiled(
        run,
        make,
        metrics=(),
        loss=["mse", cross_entropy()],
        loss_weights=[0.1, 1.0],
    )
    labels = (X.sum(axis=1, keepdims=True), Y)
    data = tf.data.Dataset.from_tensor_slices(((X[:, :4], X[:, 4:]), labels)).batch(BATCH)
    return fit(model, data)


@case("strings through a lookup layer")
def strings(run):
    from tests.conformance.models import BATCH, KERAS_3, ROWS, compiled, fit, keras, tf

    words = np.array(["a", "b", "c", "d"])[np.arange(ROWS) % 4]
    labels = (np.arange(ROWS) % 4 > 1).astype("float32")

    def make():
        lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c", "d"])
        inputs = keras.layers.Input((1,), dtype="string" if KERAS_3 else tf.string)
        hidden = keras.layers.Flatten()(keras.layers.Embedding(5, 4)(lookup(inputs)))
        return keras.Model(inputs, keras.layers.Dense(1)(hidden))

    model = compiled(run, make, loss=keras.losses.BinaryCrossentropy(from_logits=True), metrics=())
    return fit(model, tf.data.Dataset.from_tensor_slices((words[:, None], labels[:, None])).batch(BATCH))


@case("PyDataset or Sequence")
def python_dataset(run):
    from tests.conformance.models import BATCH, KERAS_3, ROWS, X, Y, compiled, fit, keras

    class Rows(keras.utils.PyDataset if KERAS_3 else keras.utils.Sequence):
        def __len__(self):
            return ROWS // BATCH

        def __getitem__(self, index):
            rows = slice(index * BATCH, (index + 1) * BATCH)
            return X[rows], Y[rows]

    return fit(compiled(run), Rows(), shuffle=False)


@case("sparse gradients (Embedding)")
def sparse_gradients(run):
    from tests.conformance.models import BATCH, ROWS, Y, compiled, fit, keras, tf

    # Some rows of the table occur several times in a batch, some on one replica only, and some never.
    tokens = np.random.default_rng(5).integers(0, 40, size=(ROWS, 3))

    def make():
        inputs = keras.layers.Input((3,), dtype="int64")
        embedded = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(inputs))
        return keras.Model(inputs, keras.layers.Dense(2)(embedded))

    data = tf.data.Dataset.from_tensor_slices((tokens, Y)).batch(BATCH)
    return fit(compiled(run, make, optimizer=lambda: keras.optimizers.Adam(0.01)), data)


@case("data that repeats without end, no steps_per_epoch")
def endless_without_steps(run):
    from tests.conformance.models import compiled, fit, from_function, keras

    class EpochsEnd(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert batch < 30, "expected an epoch of 10 steps, received no end"

    data = from_function(run, repeat=True)
    if run.is_oracle:
        return fit(compiled(run), data, steps_per_epoch=10)
    # The data of tfdist.input.distribute_files has these attributes.
    data.repeats, data.steps_per_epoch = True, 10
    return fit(compiled(run), data, callbacks=[EpochsEnd()])
