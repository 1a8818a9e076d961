"""A step may update variables in a condition and in a function: as one device does, on all replicas alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.optimizers import DistributedOptimizer

pytestmark = pytest.mark.usefixtures("float64")
keras = tf.keras
ROWS = np.random.default_rng(3).normal(size=(22, 4))
BATCH = 8


@functools.cache
def strategy_of(kind: str, replicas: int = 2) -> tf.distribute.Strategy:
    if kind == "one_device":
        return tfdist.create_strategy(kind)
    return tfdist.create_strategy(kind, devices=[f"CPU:{i}" for i in range(replicas)])


OTHERS = [("mirrored", 3), ("mirrored", 1), ("central_storage", 2)]


@pytest.fixture
def strategy(request: pytest.FixtureRequest) -> tf.distribute.Strategy:
    return strategy_of(*request.param)


class Loop:
    """A loop of one's own: one dense layer, an optimizer, and a number of steps."""

    def __init__(
        self, strategy: tf.distribute.Strategy, optimizer: Callable[[], Any], *, is_built: bool = False
    ) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.layer = keras.layers.Dense(2, kernel_initializer="ones", bias_initializer="ones")
            self.layer.build((None, 4))
            self.optimizer = optimizer()
            only_first = tf.VariableAggregation.ONLY_FIRST_REPLICA
            self.made = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=only_first)
            if is_built:
                self.optimizer.build(self.layer.trainable_variables)
        self.weights = self.layer.trainable_variables

    def gradients(self, rows: tf.Tensor) -> list[Any]:
        """Returns the gradients of this replica's part of the mean over the global batch."""
        with tf.GradientTape() as tape:
            each = tf.reduce_sum(tf.tanh(self.layer(rows)) ** 2, axis=1)
            loss = tf.nn.compute_average_loss(each, global_batch_size=BATCH)
        return tape.gradient(loss, self.weights)

    def apply(self, gradients: list[Any]) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))

    def run(self, step: Callable[[Loop, tf.Tensor], Any], *, steps: int = 4) -> list[np.ndarray]:
        """Makes steps, and returns the weights of every replica."""

        @tf.function
        def whole(rows: Any) -> Any:
            return self.strategy.run(step, args=(self, rows))

        data = tf.data.Dataset.from_tensor_slices(ROWS[: 2 * BATCH]).batch(BATCH).repeat(steps // 2)
        for rows in self.strategy.experimental_distribute_dataset(data):
            self.results = self.strategy.experimental_local_results(whole(rows))
        values = [getattr(one, "value", one) for one in self.weights]
        values = [one() if callable(one) else one for one in values]
        return [np.asarray(part) for one in values for part in self.strategy.experimental_local_results(one)]


def agree(strategy: Any, step: Callable, optimizer: Callable[[], Any] | None = None, **options: Any) -> None:
    """Asserts that all replicas have the weights of one device."""
    optimizer = optimizer or (lambda: keras.optimizers.Adam(0.1))
    expected = Loop(strategy_of("one_device"), optimizer, **options).run(step)
    found = Loop(strategy, optimizer, **options).run(step)
    copies = len(found) // len(expected)
    assert copies * len(expected) == len(found)
    for i, one in enumerate(found):
        np.testing.assert_allclose(one, expected[i // copies], rtol=1e-10, atol=0)
    # The steps have changed the weights.
    assert not np.allclose(expected[0], 1.0)


def in_every_second_step(loop: Loop, rows: tf.Tensor) -> None:
    gradients = loop.gradients(rows)
    loop.made.assign_add(1)
    tf.cond(tf.equal(loop.made % 2, 0), lambda: loop.apply(gradients), lambda: None)


def by_autograph(loop: Loop, rows: tf.Tensor) -> None:
    gradients = loop.gradients(rows)
    loop.made.assign_add(1)
    if loop.made % 2 == 0:
        loop.apply(gradients)


def in_both_branches(loop: Loop, rows: tf.Tensor) -> None:
    gradients = loop.gradients(rows)
    loop.made.assign_add(1)
    twice = [2 * one for one in gradients]
    tf.cond(loop.made > 2, lambda: loop.apply(gradients), lambda: loop.apply(twice))


def in_nested_conditions(loop: Loop, rows: tf.Tensor) -> None:
    gradients = loop.gradients(rows)
    loop.made.assign_add(1)

    def inner() -> None:
        tf.cond(loop.made % 2 == 0, lambda: loop.apply(gradients), lambda: None)

    tf.cond(loop.made > 1, inner, lambda: None)


def in_a_function(loop: Loop, rows: tf.Tensor) -> None:
    @tf.function
    def update(rows: tf.Tensor) -> None:
        loop.apply(loop.gradients(rows))

    update(rows)


def in_a_function_of_a_condition(loop: Loop, rows: tf.Tensor) -> None:
    loop.made.assign_add(1)

    @tf.function(autograph=False)
    def update(gradients: list[tf.Tensor], *, scale: float) -> None:
        loop.apply([scale * one for one in gradients])

    gradients = loop.gradients(rows)
    if loop.made % 2 == 0:
        update(gradients, scale=2.0)


STEPS = (
    in_every_second_step,
    by_autograph,
    in_both_branches,
    in_nested_conditions,
    in_a_function,
    in_a_function_of_a_condition,
)


two = pytest.mark.parametrize("strategy", [("mirrored", 2)], indirect=True, ids=str)


@two
@pytest.mark.parametrize("step", STEPS)
def test_weights_are_those_of_one_device(strategy, step):
    agree(strategy, step, is_built=step is in_a_function_of_a_condition)


@pytest.mark.full
@pytest.mark.parametrize("strategy", OTHERS, indirect=True, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_weights_are_those_of_one_device_on_other_strategies(strategy, step):
    agree(strategy, step, is_built=step is in_a_function_of_a_condition)


def distributed(**options: Any) -> Callable[[], Any]:
    return lambda: DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), **options)


@two
@pytest.mark.parametrize("options", [{}, {"backward_passes_per_step": 2}], ids=str)
@pytest.mark.parametrize("step", [in_every_second_step, in_a_function])
def test_a_distributed_optimizer_may_update_there(strategy, step, options):
    agree(strategy, step, distributed(**options))


@two
def test_each_replica_gets_what_its_own_branch_returns(strategy):
    def step(loop: Loop, rows: tf.Tensor) -> Any:
        gradients = loop.gradients(rows)
        loop.made.assign_add(1)
        number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float64)
        slices = tf.IndexedSlices(number * tf.ones([1, 2], tf.float64), tf.constant([0]), tf.constant([3, 2]))

        def update() -> Any:
            loop.apply(gradients)
            return {"number": number, "slices": slices, "rows": (tf.shape(rows)[0], loop.made)}

        def leave() -> Any:
            return {"number": -number, "slices": slices, "rows": (0, loop.made)}

        return tf.cond(loop.made % 2 == 0, update, leave)

    loop = Loop(strategy, keras.optimizers.SGD)
    loop.run(step)
    for i, found in enumerate(loop.results):
        assert found["number"].numpy() == i
        assert found["slices"].values.numpy().tolist() == [[i, i]]
        assert [int(one) for one in found["rows"]] == [BATCH // 2, 4]


@two
def test_a_summary_in_a_branch_is_written(strategy, tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))

    def step(loop: Loop, rows: tf.Tensor) -> None:
        gradients = loop.gradients(rows)
        loop.made.assign_add(1)

        def update() -> None:
            loop.apply(gradients)
            tf.summary.scalar("made", loop.made, step=loop.made)

        with writer.as_default():
            tf.cond(loop.made % 2 == 0, update, lambda: None)

    Loop(strategy, keras.optimizers.SGD).run(step)
    writer.close()
    (file,) = tmp_path.iterdir()
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(file))]
    # The first replica writes.
    assert [event.step for event in events if event.summary.value] == [2, 4]


@two
def test_a_function_with_a_signature_gets_tensors_of_it(strategy):
    @tf.function(input_signature=[tf.TensorSpec([2], tf.float64), tf.TensorSpec([None, 4], tf.float64)])
    def scaled(factors: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        current.apply([factors[0] * factors[1] * one for one in current.gradients(rows)])
        assert factors.shape == [2]
        return factors

    current = Loop(strategy, keras.optimizers.SGD)
    current.run(lambda loop, rows: scaled([2.0, 3.0], rows))
    assert current.results[0].dtype == tf.float64


@two
def test_replicas_that_decide_differently_are_an_error(strategy):
    def step(loop: Loop, rows: tf.Tensor) -> None:
        gradients = loop.gradients(rows)
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        tf.cond(tf.reshape(tf.equal(number, 0), [1]), lambda: loop.apply(gradients), lambda: None)

    message = "expected all 2 replicas to take the same branch of a tf.cond that updates variables, received both"
    # A predicate may have one entry.
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        Loop(strategy, keras.optimizers.SGD).run(step)


@two
def test_a_tape_that_would_not_see_the_branches_is_an_error_as_before(strategy):
    def step(loop: Loop, rows: tf.Tensor) -> None:
        gradients = loop.gradients(rows)
        with tf.GradientTape():
            tf.cond(loop.made == 0, lambda: loop.apply(gradients), lambda: None)

    with pytest.raises(RuntimeError, match="merge_call"):
        Loop(strategy, keras.optimizers.SGD).run(step)


@two
def test_an_error_of_a_branch_is_that_of_the_program(strategy):
    def step(loop: Loop, rows: tf.Tensor) -> None:
        gradients = loop.gradients(rows)

        def update() -> None:
            loop.apply(gradients)
            raise KeyError("planted")

        tf.cond(loop.made == 0, update, lambda: None)

    with pytest.raises(KeyError, match="planted"):
        Loop(strategy, keras.optimizers.SGD).run(step)


@two
def test_a_function_that_makes_variables_is_not_traced_again(strategy):
    class Once:
        variable = None

        @tf.function
        def update(self, loop: Loop, rows: tf.Tensor) -> None:
            if self.variable is None:
                self.variable = tf.Variable(1.0, dtype=tf.float64)
            loop.apply(loop.gradients(self.variable * rows))

    once = Once()
    with pytest.raises(RuntimeError, match="merge_call"):
        Loop(strategy, keras.optimizers.SGD).run(lambda loop, rows: once.update(loop, rows))
