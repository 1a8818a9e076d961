"""Preprocessing layers that adapt to data, recurrent layers and attention."""

from __future__ import annotations

import numpy as np

from tests.conformance.case import case


@case("Normalization with adapt", floatx="float64")
def normalization_with_adapt(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit_and_evaluate, keras

    def make():
        normalization = keras.layers.Normalization()
        normalization.adapt(batches(UNEVEN).map(lambda x, y: 3 * x + 1))
        inputs = keras.layers.Input((8,))
        hidden = keras.layers.Dense(16, activation="tanh")(normalization(inputs))
        return keras.Model(inputs, keras.layers.Dense(2)(hidden))

    return fit_and_evaluate(compiled(run, make), batches(UNEVEN))


@case("TextVectorization with adapt")
def text_vectorization_with_adapt(run):
    from tests.conformance.models import BATCH, KERAS_3, UNEVEN, Y, compiled, fit_and_evaluate, keras, tf

    words = np.array(["red", "green", "blue", "a", "the"])
    chosen = words[np.random.default_rng(4).integers(0, 5, size=(UNEVEN, 4))]
    texts = np.array([" ".join(row[: 1 + i % 4]) for i, row in enumerate(chosen)])

    def make():
        vectorization = keras.layers.TextVectorization(output_sequence_length=4)
        vectorization.adapt(tf.data.Dataset.from_tensor_slices(texts).batch(BATCH))
        inputs = keras.layers.Input((1,), dtype="string" if KERAS_3 else tf.string)
        embedded = keras.layers.Embedding(8, 4)(vectorization(inputs))
        return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(embedded)))

    data = tf.data.Dataset.from_tensor_slices((texts[:, None], Y[:UNEVEN])).batch(BATCH)
    return fit_and_evaluate(compiled(run, make), data)


def _tokens(rows):
    """Returns rows of up to 6 tokens, 0 after the last, of which the first half of each batch has fewer."""
    from tests.conformance.models import BATCH

    tokens = np.random.default_rng(9).integers(1, 20, size=(rows, 6))
    lengths = np.where(np.arange(rows) % BATCH < BATCH // 2, 2, 5) + np.arange(rows) % 2
    tokens[np.arange(6)[None] >= lengths[:, None]] = 0
    return tokens


@case("LSTM of masked sequences, one label for each step", floatx="float64")
def masked_lstm(run):
    from tests.conformance.models import BATCH, UNEVEN, compiled, fit_and_evaluate, keras, tf

    tokens = _tokens(UNEVEN)

    def make():
        inputs = keras.layers.Input((6,), dtype="int64")
        embedded = keras.layers.Embedding(20, 4, mask_zero=True)(inputs)
        return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.LSTM(5, return_sequences=True)(embedded)))

    data = tf.data.Dataset.from_tensor_slices((tokens, (tokens % 3).astype("int64"))).batch(BATCH)
    return fit_and_evaluate(compiled(run, make), data)


@case("embeddings of words and of positions, Adam with clipnorm", floatx="float64")
def embedding_of_positions(run):
    from tests.conformance.models import BATCH, UNEVEN, Y, compiled, fit_and_evaluate, keras, tf

    class WordsAndPositions(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.words, self.positions = keras.layers.Embedding(20, 4), keras.layers.Embedding(6, 4)

        def build(self, shape):
            self.words.build(shape)
            self.positions.build(shape)
            super().build(shape)

        def call(self, tokens):
            return self.words(tokens) + self.positions(tf.range(tf.shape(tokens)[-1]))

    def make():
        inputs = keras.layers.Input((6,), dtype="int64")
        hidden = keras.layers.Flatten()(WordsAndPositions()(inputs))
        return keras.Model(inputs, keras.layers.Dense(2)(hidden))

    def adam():
        # A large epsilon, because Adam would divide a tiny gradient by its own size, and so amplify rounding errors.
        return keras.optimizers.Adam(0.01, epsilon=1e-2, clipnorm=0.05)

    data = tf.data.Dataset.from_tensor_slices((_tokens(UNEVEN), Y[:UNEVEN])).batch(BATCH)
    return fit_and_evaluate(compiled(run, make, optimizer=adam), data)


@case("Masking and a bidirectional GRU", floatx="float64")
def masked_gru(run):
    from tests.conformance.models import BATCH, UNEVEN, X, Y, as_float, compiled, fit_and_evaluate, keras, tf

    # 4 steps of 2 values, the last of which are 0 in some rows.
    steps = as_float(X[:UNEVEN]).reshape(UNEVEN, 4, 2)
    steps[np.arange(4)[None] > 1 + np.arange(UNEVEN)[:, None] % 3] = 0

    def make():
        inputs = keras.layers.Input((4, 2))
        hidden = keras.layers.Bidirectional(keras.layers.GRU(5))(keras.layers.Masking()(inputs))
        return keras.Model(inputs, keras.layers.Dense(2)(hidden))

    return fit_and_evaluate(compiled(run, make), tf.data.Dataset.from_tensor_slices((steps, Y[:UNEVEN])).batch(BATCH))


@case("stateful RNN, reset between epochs", floatx="float64", refused_on=("central_storage",))
def stateful_rnn(run):
    from tests.conformance.models import BATCH, KERAS_3, X, Y, as_float, compiled, fit, keras, tf

    if not KERAS_3:
        return "Keras 2 refuses stateful RNNs under every strategy"
    layer = []
    replicas = 1 if run.is_oracle else run.topology.replicas

    def make():
        inputs = keras.layers.Input(batch_shape=(BATCH // replicas, 4, 2))
        layer.append(keras.layers.SimpleRNN(5, stateful=True))
        return keras.Model(inputs, keras.layers.Dense(2)(layer[0](inputs)))

    class Reset(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            layer[0].reset_state()

    data = tf.data.Dataset.from_tensor_slices((as_float(X).reshape(-1, 4, 2), Y)).batch(BATCH, drop_remainder=True)
    return fit(compiled(run, make), data, callbacks=[Reset()])


@case("MultiHeadAttention with a mask", floatx="float64")
def attention(run):
    from tests.conformance.models import BATCH, ONE_LEFT, Y, compiled, fit_and_evaluate, keras, tf

    tokens = _tokens(ONE_LEFT)

    def make():
        inputs = keras.layers.Input((6,), dtype="int64")
        embedded = keras.layers.Embedding(20, 4, mask_zero=True)(inputs)
        attended = keras.layers.MultiHeadAttention(num_heads=2, key_dim=3)(embedded, embedded)
        normalized = keras.layers.LayerNormalization()(keras.layers.Add()([embedded, attended]))
        return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(normalized)))

    data = tf.data.Dataset.from_tensor_slices((tokens, Y[: len(tokens)])).batch(BATCH)
    return fit_and_evaluate(compiled(run, make), data)
