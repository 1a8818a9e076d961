"""Mends Keras 3's train and test functions on several replicas, which fail with steps_per_execution above 1.

Stock Keras 3 has five defects in these functions:

- With steps_per_execution above 1 the step fails, because a function within a condition within a loop loses its integer
  inputs (keras-team/keras#19246). The mend traces the step directly into the loop.
- A step that finds no data has already increased `optimizer.iterations`, because this operation does not wait for the
  data. With the mend the whole step waits for its data.
- The logs of a step are the mean of the results that each replica's metrics give. The mean of accuracies is not the
  accuracy if the numbers of rows differ, and the mean of AUCs is not the AUC. With the mend the logs are computed from
  the sums over all replicas, as at the end of the epoch.
- `train_on_batch` and `test_on_batch` give the whole batch to every replica. With the mend they divide its rows.
- `jit_compile=True` fails in TensorFlow if variables are on several devices. The mend refuses `jit_compile=True`.

Source: TensorFlowTrainer._make_function in Keras 3; upstream issue keras-team/keras#19246.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.allreduce import sum_gradients
from tfdist.keras_compat.losses.global_batch import global_batch
from tfdist.keras_compat.losses.not_finite import LossWatch, watch_losses
from tfdist.keras_compat.losses.rule import rule_for
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.optimizers.hooked import hook_of_local_steps
from tfdist.keras_compat.steps.batch_of_replicas import batch_of_replicas
from tfdist.keras_compat.steps.jit_compile_on_several_devices import refuse_jit_compile
from tfdist.keras_compat.steps.logs_of_replicas import flat_logs, nested_like, parts_of_scalars, scalars_of
from tfdist.keras_compat.steps.results_of_metrics import MetricResults, results_by_name
from tfdist.keras_compat.steps.traced_by_rule import TracedByRule, checked_by_rule
from tfdist.keras_compat.variables.state_stays_on_its_replica import average_state


def _defect_present() -> bool:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    source = inspect.getsource(TensorFlowTrainer._make_function)
    return "tf.while_loop" in source and "multi_step_on_iterator" in source


def _is_distributed(strategy: Any) -> bool:
    return (
        strategy is not None
        and not isinstance(strategy, (tf.distribute.ParameterServerStrategy, tf.distribute.TPUStrategy))
        and strategy.num_replicas_in_sync > 1
    )


def _is_central(strategy: Any) -> bool:
    return isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)


def _unchanged(step: Callable) -> Callable:
    return step


class ReplicaSteps:
    """The train or test function of a model on several replicas.

    Args:
        model: the Keras model.
        step_function: runs the step of a replica on its batch and returns logs.
    """

    def __init__(self, model: Any, step_function: Callable) -> None:
        self._model, self._strategy = model, model._distribute_strategy
        self._step_function = step_function
        # Keras 3.12 and later turn empty optionals in the data into None.
        self._one_step = getattr(model, "_autoconvert_optionals", _unchanged)(self._run)
        self._rule = rule_for(model, step_function.__name__)
        self._is_train_step = step_function.__name__ != "test_step"
        # With a hook of local steps nothing is summed over replicas in a step: logs are those of the first replica.
        self._alone = hook_of_local_steps(model) if self._is_train_step else None
        # The replicas of CentralStorageStrategy share the variables of a metric, which are those of all replicas.
        self._sums_results = self._alone is None and not _is_central(self._strategy)
        # Without a graph it is not seen what a log is computed from.
        self._results = MetricResults(model, are_summed=model.run_eagerly and self._sums_results)
        self._on_data = self._checked(self._one_step)
        self._on_iterator = self._checked(self._eager_steps if model.run_eagerly else self._steps)
        self._watch = LossWatch(self._strategy)
        # The metric and the name of its result, of the logs that are results of metrics; set by the replicas.
        self._metric_logs: dict[str, tuple[Any, str]] = {}
        self._nested_logs: dict[str, Any] = {}
        with tf.device("CPU:0"):
            self._step = tf.Variable(
                0, trainable=False, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )

    def _checked(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if self._model.run_eagerly:
            return checked_by_rule(function, self._rule)
        return TracedByRule(function, self._rule, self._results.takes_change)

    def begin(self) -> None:
        """Begins a fit: steps are counted from 1, and a loss that is not finite is reported again."""
        self._watch.begin()
        self._step.assign(0)

    def trace(self, iterator: Any) -> None:
        """Makes the variables that a step needs; with run_eagerly=True they are made by the first step.

        Args:
            iterator: the iterator that the first call will receive.
        """
        if isinstance(self._on_iterator, TracedByRule) and isinstance(iterator, tf.distribute.DistributedIterator):
            self._on_iterator.trace(iterator)

    def __call__(self, iterator: Any) -> Any:
        """Runs the steps of one call and returns the logs of the last step.

        Raises:
            tf.errors.OutOfRangeError: if there is no data left, with an iterator of tf.data.
            StopIteration: if there is no data left, with run_eagerly=True.
        """
        try:
            return self._call(iterator)
        finally:
            self._watch.report()

    def _call(self, iterator: Any) -> Any:
        if isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            return self._on_iterator(iterator)
        logs = None
        for _, data in zip(range(self._model.steps_per_execution), iterator, strict=False):
            logs = self._on_data(batch_of_replicas(data, self._strategy))
        return logs

    def _run(self, data: Any) -> Any:
        """Runs one step, in cross-replica context, and returns its logs."""
        if tf.executing_eagerly():
            return self._run_replicas(data)
        local = [part for value in tf.nest.flatten(data) for part in self._strategy.experimental_local_results(value)]
        parts = [p for part in local for p in tf.nest.flatten(part, expand_composites=True) if tf.is_tensor(p)]
        with tf.control_dependencies(parts):
            return self._run_replicas(data)

    def _run_replicas(self, data: Any) -> Any:
        step = tf.convert_to_tensor(self._step.assign_add(1))
        with self._results.remembered():
            logs = self._strategy.run(self._replica_step, args=(data, step))
        return self._logs(*logs)

    def _replica_step(self, data: Any, step: tf.Tensor) -> tuple[Any, Any]:
        with global_batch(data, self._rule, hook=self._alone) as batch, self._watch.step() as losses:
            with self._results.on_replica():
                logs = self._step_function(data)
            if self._alone is None:
                average_state(batch)
            if self._is_train_step:
                self._watch.look(losses, logs, step)
            return self._logs_and_totals(logs)

    def _logs_and_totals(self, logs: Any) -> tuple[Any, Any]:
        if not isinstance(logs, dict):
            return logs, []
        self._nested_logs, logs = nested_like(logs, flat_logs(logs)), flat_logs(logs)
        # TensorFlow places the sum on the device of its operand. Only the result of tf.identity has a device, the
        # value of a variable has none.
        metrics = [tf.identity(variable.value) for variable in self._summed_variables()]
        found = {name: self._results.metric_of(value) for name, value in logs.items()}
        self._metric_logs = {name: metric for name, metric in found.items() if metric is not None}
        others = {name: value for name, value in logs.items() if name not in self._metric_logs}
        if self._sums_results and any(map(self._results.is_made_of_results, others.values())):
            self._results.sum()
        # Eager replicas may find different results of metrics, but have to make the same sums.
        if tf.executing_eagerly():
            others = logs
        if self._alone is not None:
            return logs, [*metrics, *(tf.identity(others[name]) for name in scalars_of(others))]
        return logs, sum_gradients([*metrics, *parts_of_scalars(others)])

    def _summed_variables(self) -> list[Any]:
        return [] if _is_central(self._strategy) else self._results.variables()

    def _logs(self, logs: Any, totals: Any) -> Any:
        from keras.src.backend.tensorflow import trainer

        if not isinstance(logs, dict):
            return trainer.reduce_per_replica(logs, self._strategy, "auto")
        first = {name: self._strategy.experimental_local_results(value)[0] for name, value in logs.items()}
        totals = [self._strategy.experimental_local_results(total)[0] for total in totals]
        summed = self._summed_variables()
        is_eager = tf.executing_eagerly()
        others = [name for name in scalars_of(first) if is_eager or name not in self._metric_logs]
        found = dict(zip(others, totals[len(summed) :], strict=True))
        results: dict[int, dict[str, Any]] = {}
        for name, (metric, of_metric) in self._metric_logs.items():
            if id(metric) not in results:
                results[id(metric)] = results_by_name(metric, summed, totals[: len(summed)])
            found[name] = results[id(metric)][of_metric]
        rest = {name: value for name, value in logs.items() if name not in found}
        if rest:
            found |= trainer.reduce_per_replica(rest, self._strategy, "auto")
        return nested_like(self._nested_logs, found)

    def _steps(self, iterator: Any) -> Any:
        logs = self._one_step(iterator.get_next())
        steps = self._model.steps_per_execution
        unrolled = min(self._model.unrolled_steps_per_execution, steps)

        def next_step(step: tf.Tensor, logs: Any) -> Any:
            def step_if_data() -> Any:
                data = iterator.get_next_as_optional()
                return tf.cond(data.has_value(), lambda: self._one_step(data.get_value()), lambda: logs)

            return step_if_data() if unrolled == 1 else tf.cond(step < steps, step_if_data, lambda: logs)

        def body(step: tf.Tensor, logs: Any) -> tuple[tf.Tensor, Any]:
            for _ in range(unrolled):
                logs = next_step(step, logs)
                step += 1
            return step, logs

        if steps == 1:
            return logs
        return tf.while_loop(lambda step, _: step < steps, body, (tf.constant(1), logs))[1]

    def _eager_steps(self, iterator: Any) -> Any:
        logs = self._one_step(next(iterator))
        for _ in range(self._model.steps_per_execution - 1):
            data = iterator.get_next_as_optional()
            if not data.has_value():
                break
            logs = self._one_step(data.get_value())
        return logs


def _make_function(stock: Callable) -> Callable:
    def make_function(self: Any, step_function: Callable) -> Any:
        if not _is_distributed(self._distribute_strategy):
            return stock(self, step_function)
        refuse_jit_compile(self)
        return ReplicaSteps(self, step_function)

    return make_function


def _apply() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    watch_losses(TensorFlowTrainer, {LossScaleOptimizer: "scale_loss"})
    TensorFlowTrainer._make_function = _make_function(TensorFlowTrainer._make_function)


MEND = Mend(
    name="steps_fail_in_a_loop",
    issue="keras-team/keras#19246",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`steps_per_execution` above 1 fails; logs of batches are means of the replicas' metrics; `train_on_batch` "
    "gives the whole batch to every replica; `jit_compile` fails late and is refused by tfdist",
    rows=(
        "steps_per_execution=8, which does not divide the epoch",
        "steps_per_execution=8, uneven, with validation and predict",
        "logs of single batches",
        "train_on_batch with a summed loss and a metric that counts",
        "jit_compile=True",
    ),
)
