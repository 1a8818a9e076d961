"""Mends the order of shuffled arrays, which is another one on each worker unless the program sets a seed.

`fit` shuffles arrays by default. Each worker shuffles all rows, and takes its part of each batch. Since the orders
differ, an epoch of two workers has a quarter of the rows twice, and another quarter never. With the mend, the workers
draw the order of each epoch from a number of the first worker. A program that sets a seed has the order that it has
without the mend.

The batches of a PyDataset or Sequence, which Keras shuffles too, get one order in the same way. Data that the program
shuffles itself cannot be mended, since it exists before it is distributed. Only a line of the log says what to do.

Source: ArrayDataAdapter in Keras 3 and TensorLikeDataAdapter in Keras 2, which shuffle without a seed. Keras corrected
it for distributions of its own only (keras-team/keras#23046). tensorflow/datasets#1302 is about data that the program
shuffles.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.keras_compat.data.arrays_of_workers import say_if_arrays_differ
from tfdist.keras_compat.data.batches_of_workers import share_batches
from tfdist.keras_compat.data.order import DRAWN, is_drawn, order_without_seed
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.resume.data_of_fit import datasets_of
from tfdist.keras_compat.version import engine_module, keras_in_use
from tfdist.workers import count_workers, exchange

# Datasets of files: TensorFlow gives each worker its own files, before their records are shuffled.
_FILES = re.compile("(TFRecord|TextLine|FixedLengthRecord|CSV|RecordIO|SSTable|ArrayRecord).*Dataset")


class _State(threading.local):
    """What this thread does.

    Attributes:
        strategy: the strategy of the model whose data Keras prepares.
        number: the number from which the order is drawn while Keras shuffles arrays; None otherwise.
        seed: tensor of int64, the seed of one epoch, while the function that orders an epoch is traced.
    """

    strategy: tf.distribute.Strategy | None = None
    number: int | None = None
    seed: tf.Tensor | None = None


_state = _State()
_said: list[bool] = []


class _Epochs:
    """Stands for the `Dataset.range(1)` of Keras, from whose only entry the order of an epoch is made.

    Args:
        seeds: a dataset with one seed, which is another one in each epoch.
    """

    def __init__(self, seeds: tf.data.Dataset) -> None:
        self._seeds = seeds

    def repeat(self, count: int | None) -> _Epochs:
        return _Epochs(self._seeds.repeat(count))

    def map(self, order: Callable) -> tf.data.Dataset:
        @tf.autograph.experimental.do_not_convert
        def with_seed(seed: tf.Tensor) -> Any:
            _state.seed = seed
            try:
                return order(seed)
            finally:
                _state.seed = None

        return self._seeds.map(with_seed)


def _shuffling_class() -> Any:
    if keras_in_use().is_keras3:
        return importlib.import_module("keras.src.trainers.data_adapters.array_data_adapter").ArrayDataAdapter
    return engine_module("data_adapter").TensorLikeDataAdapter


def _defect_present() -> bool:
    return "random.shuffle(indices)" in inspect.getsource(_shuffling_class())


def _needed_by(strategy: tf.distribute.Strategy) -> bool:
    return count_workers(strategy) > 1


@contextlib.contextmanager
def _drawing(strategy: tf.distribute.Strategy | None, shuffle: Any) -> Iterator[None]:
    """Makes the arrays that Keras shuffles in this context have the same order on all workers."""
    from tensorflow.python.eager import context

    if strategy is None or count_workers(strategy) == 1 or not shuffle or context.global_seed() is not None:
        yield
        return
    own = int.from_bytes(os.urandom(7), "big")
    _state.number = int(exchange(strategy, [own], dtype="int64", to="call fit")[0][0])
    try:
        yield
    finally:
        _state.number = None


def _apply() -> None:
    from tensorflow.python.data.ops import dataset_ops
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
    from tensorflow.python.ops import gen_random_ops

    dataset_ops.DatasetV2.range = staticmethod(_range(dataset_ops.DatasetV2.range))
    dataset_ops.DatasetV2.shuffle = _shuffle(dataset_ops.DatasetV2.shuffle)
    gen_random_ops.random_shuffle = _random_shuffle(gen_random_ops.random_shuffle)
    distribute = CollectiveAllReduceExtended._experimental_distribute_dataset
    CollectiveAllReduceExtended._experimental_distribute_dataset = _saying(distribute)
    shuffling = _shuffling_class()
    if keras_in_use().is_keras3:
        iterator = importlib.import_module("keras.src.backend.tensorflow.trainer").TFEpochIterator
        iterator.__init__ = _of_strategy(iterator.__init__)
        shuffling.get_tf_dataset = _drawn(shuffling.get_tf_dataset)
        share_batches(lambda: _state.strategy)
        return
    for one in (shuffling, engine_module("data_adapter").CompositeTensorDataAdapter):
        one.__init__ = _drawn_in_scope(one.__init__)
    share_batches(_strategy_in_scope)


def _strategy_in_scope() -> tf.distribute.Strategy | None:
    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else None


def _of_strategy(stock: Callable) -> Callable:
    def init(self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        _state.strategy = distribute_strategy
        try:
            stock(self, distribute_strategy, *args, **kwargs)
        finally:
            _state.strategy = None

    return init


def _drawn(stock: Callable) -> Callable:
    def get_tf_dataset(self: Any) -> Any:
        say_if_arrays_differ(_state.strategy, self._inputs)
        with _drawing(_state.strategy, self._shuffle):
            return stock(self)

    return get_tf_dataset


def _drawn_in_scope(stock: Callable) -> Callable:
    signature = inspect.signature(stock)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        strategy = _strategy_in_scope()
        say_if_arrays_differ(strategy, [given.get(name) for name in ("x", "y", "sample_weights")])
        with _drawing(strategy, given.get("shuffle")):
            stock(self, *args, **kwargs)

    return init


def _range(stock: Callable) -> Callable:
    def range_(*args: Any, **kwargs: Any) -> Any:
        if _state.number is None or args != (1,):
            return stock(*args, **kwargs)
        seeds = tf.data.Dataset.random(seed=_state.number, rerandomize_each_iteration=True)
        setattr(seeds, DRAWN, True)
        return _Epochs(seeds.take(1))

    return range_


def _shuffle(stock: Callable) -> Callable:
    def shuffle(self: Any, buffer_size: Any, seed: Any = None, *args: Any, **kwargs: Any) -> tf.data.Dataset:
        if _state.number is None or seed is not None:
            return stock(self, buffer_size, seed, *args, **kwargs)
        dataset = stock(self, buffer_size, _state.number, *args, **kwargs)
        setattr(dataset, DRAWN, True)
        return dataset

    return shuffle


def _random_shuffle(stock: Callable) -> Callable:
    def random_shuffle(value: Any, seed: int = 0, seed2: int = 0, name: str | None = None) -> tf.Tensor:
        number = _state.number
        if number is None:
            return stock(value, seed=seed, seed2=seed2, name=name)
        if _state.seed is None:
            # Rows within a batch, in data whose batches are shuffled.
            return stock(value, seed=1 + number % (2**31 - 1), seed2=seed2, name=name)
        return tf.random.experimental.stateless_shuffle(value, tf.stack([_state.seed, tf.constant(number, tf.int64)]))

    return random_shuffle


def _saying(stock: Callable) -> Callable:
    """Returns the function that distributes data, which also says if the workers read the data in different orders."""

    def distribute(self: Any, dataset: Any, options: Any) -> Any:
        # One worker is enough to say it.
        may_say = self._num_workers > 1 and not self._id_in_cluster and not _said
        if may_say and isinstance(dataset, tf.data.Dataset) and _is_split_by_row(dataset) and not is_drawn(dataset):
            order = order_without_seed(dataset)
            if order:
                _said.append(True)
                get_logger().warning(
                    "the workers read the data in different orders (%s without a seed), so that an epoch has some "
                    "records twice and others never; call keras.utils.set_random_seed(1) at the beginning of the "
                    "program, or give shuffle a seed",
                    order[0],
                )
        return stock(self, dataset, options)

    return distribute


def _is_split_by_row(dataset: tf.data.Dataset) -> bool:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy == tf.data.experimental.AutoShardPolicy.AUTO:
        return not any(_reads_files(one) for one in datasets_of(dataset))
    return bool(policy == tf.data.experimental.AutoShardPolicy.DATA)


def _reads_files(dataset: tf.data.Dataset) -> bool:
    names = [type(dataset).__name__]
    for function in dataset._functions():
        # A function that reads each file has the operation that reads in a function of its own.
        graph = function.function.graph.as_graph_def()
        nodes = [graph.node, *(one.node_def for one in graph.library.function)]
        names += [node.op for some in nodes for node in some]
    return any(_FILES.search(name) for name in names)


MEND = Mend(
    name="workers_shuffle_differently",
    issue="keras-team/keras#23046",
    strategies=("multi_worker_mirrored",),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="workers shuffle arrays in different orders unless the program sets a seed: an epoch has some rows twice "
    "and others never",
    without_row="the rows set a seed",
    needed_by=_needed_by,
)
