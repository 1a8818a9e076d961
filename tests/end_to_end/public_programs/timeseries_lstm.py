"""Weather forecast: an LSTM over windows of a time series that timeseries_dataset_from_array cuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import BATCH, ROWS, results, scope

keras = tf.keras
layers = keras.layers
PAST = 10


def windows(series: Any) -> tf.data.Dataset:
    data = keras.preprocessing.timeseries_dataset_from_array(
        series[:-1], series[PAST:, :1], sequence_length=PAST, sampling_rate=1, batch_size=BATCH
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options)


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(14)
    series = np.cumsum(rng.normal(size=(ROWS + PAST, 4)), axis=0)
    series = (series - series.mean(axis=0)) / series.std(axis=0)
    with scope(strategy):
        inputs = layers.Input((PAST, 4))
        x = layers.LSTM(6, return_sequences=True, recurrent_regularizer="l2")(inputs)
        model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(4)(x)))
        model.compile(
            optimizer=keras.optimizers.Adam(1e-2, clipnorm=0.1),
            loss="mse",
            metrics=["mae", keras.metrics.RootMeanSquaredError()],
        )
    data = windows(series)
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True)
    history = model.fit(data, validation_data=data, epochs=3, callbacks=[stop], verbose=0)
    return results(model, history, model.evaluate(data, verbose=0), predicted=model.predict(data, verbose=0))
