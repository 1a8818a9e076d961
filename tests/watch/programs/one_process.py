"""Trains in one process with small limits: nothing here is a stall, except for the blocked data at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import create_strategy
from tfdist.watch import StallWatch, Watch, WatchOptions

keras = tf.keras
# Longer than the limit of a step and the deadline together.
LONG_SECONDS = 5.0
SMALL = {"floor_seconds": 2.5, "deadline_seconds": 1.5}
X, Y = np.ones([32, 4], "float32"), np.ones([32, 1], "float32")


class SlowTrace(keras.layers.Layer):
    """A layer that takes long to trace once it is armed, but not to run."""

    is_armed = False

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if self.is_armed:
            time.sleep(LONG_SECONDS)
        return x


class Sleeps(keras.callbacks.Callback):
    """Sleeps or raises at a step or at the end of an epoch."""

    def __init__(self, *, at_epoch_end: bool = False, raises: bool = False) -> None:
        super().__init__()
        self.at_epoch_end, self.raises = at_epoch_end, raises

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.raises:
            raise RuntimeError("planted")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.at_epoch_end:
            time.sleep(LONG_SECONDS)


def make_model(**options: Any) -> tuple[Any, SlowTrace]:
    layer = SlowTrace()
    model = keras.Sequential([keras.layers.Input([4]), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model, layer


def watching() -> bool:
    return any(thread.name == "tfdist-watch" for thread in threading.enumerate())


def fit_evaluate_and_predict() -> None:
    model, _ = make_model(steps_per_execution=2)
    watch = StallWatch(**SMALL)
    data = {"batch_size": 4, "verbose": 0}
    model.fit(X, Y, validation_data=(X, Y), epochs=2, callbacks=[Sleeps(at_epoch_end=True), watch], **data)
    model.evaluate(X, Y, callbacks=[watch], **data)
    model.predict(X, callbacks=[watch], **data)
    assert not watching()


def an_error_leaves_fit() -> None:
    model, _ = make_model()
    limits = {**SMALL, "saving_seconds": 1.0, "data_seconds": 1.0, "tracing_seconds": 1.0}
    try:
        model.fit(X, Y, verbose=0, callbacks=[Sleeps(raises=True), StallWatch(**limits)])
    except RuntimeError as error:
        assert "planted" in str(error)
    time.sleep(LONG_SECONDS)


def a_step_traces_anew() -> None:
    model, layer = make_model()
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    # The last batch has another shape, for which the step is traced again.
    data = rows.batch(1, drop_remainder=True).concatenate(rows.batch(3, drop_remainder=True).take(1))

    class Arms(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            layer.is_armed = batch == 31

    for arms in (Arms(), Arms()):
        model.fit(data, verbose=0, callbacks=[arms, StallWatch(**SMALL)])


def a_loop_of_ones_own() -> None:
    with Watch(create_strategy("one_device"), WatchOptions(**SMALL)) as watch:
        for _ in range(20):
            time.sleep(0.01)
            watch.step()
        with watch.phase("saving"):
            time.sleep(LONG_SECONDS)
        try:
            with watch.phase("lunch"):
                pass
        except ValueError as error:
            assert "expected the phase saving, evaluation or tracing, received 'lunch'" in str(error)
    assert not watching()


def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number in range(1000):
        if number == 30:
            threading.Event().wait()
        yield X[0], Y[0]


def blocked_data() -> None:
    model, _ = make_model()
    signature = (tf.TensorSpec([4]), tf.TensorSpec([1]))
    data = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(1)
    model.fit(data, verbose=0, callbacks=[StallWatch(**SMALL)])


if __name__ == "__main__":
    for part in (fit_evaluate_and_predict, an_error_leaves_fit, a_step_traces_anew, a_loop_of_ones_own, blocked_data):
        print(f"BEGIN {part.__name__}", flush=True)
        part()
