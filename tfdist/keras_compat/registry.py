"""All mends, in the order in which they are applied, and the functions that apply them.

A mend is applied when a strategy that needs it is created, if its check finds the defect in the installed Keras or
TensorFlow. It is applied only once in a process. Each mend has its own file, named after the defect, and a canary test
that fails as soon as upstream has corrected the defect. No other file imports all mends.
"""

from __future__ import annotations

from typing import TypeVar

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.keras_compat.data import (
    data_awaited_without_deadline,
    dataset_functions_not_accepted,
    device_iterators_end_late,
    endless_data_without_steps,
    generator_arrays_overwritten,
    model_without_call,
    steps_counted_by_each_worker,
    symbolic_build_averages_data,
    workers_shuffle_differently,
)
from tfdist.keras_compat.devices import (
    collectives_shared_by_strategies,
    gathers_crash_without_entries,
    gathers_refuse_types,
    one_cpu_for_each_worker,
)
from tfdist.keras_compat.files import (
    backup_owned_by_no_worker,
    csv_written_by_every_worker,
    files_written_by_every_worker_keras2,
    files_written_by_every_worker_keras3,
    logs_written_by_every_worker,
    orbax_knows_one_replica,
)
from tfdist.keras_compat.layers import (
    batch_statistics_read_locally,
    batch_statistics_stay_local,
    convolution_of_no_rows,
    moments_lose_digits,
    state_shared_by_replicas,
    statistics_of_an_empty_replica,
)
from tfdist.keras_compat.losses import (
    activity_regularizers_add_rows,
    ctc_of_no_rows,
    gradients_used_by_the_step,
    loss_called_on_one_replica,
    loss_divided_by_replicas,
    loss_divided_by_replicas_keras2,
    losses_shared_by_replicas,
    metrics_of_no_rows,
    scalars_counted_by_replicas,
)
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.optimizers import (
    compression_needs_its_optimizer,
    constraint_without_aggregation,
    gradients_used_before_the_sum,
    learning_rate_without_aggregation,
    nadam_counts_replicas,
    sums_without_deadline,
    wrapping_is_not_saved,
)
from tfdist.keras_compat.parameter_server import fit_keras2, fit_keras3
from tfdist.keras_compat.steps import (
    batch_logs_summed_over_workers,
    initial_epoch_outlives_fit,
    jit_compile_on_several_devices,
    logs_reduced_along_an_axis,
    predictions_repeated_by_replicas,
    steps_fail_in_a_loop,
    updates_in_a_condition,
    updates_in_a_function,
)
from tfdist.keras_compat.tested import defect_present, say_if_untested
from tfdist.keras_compat.variables import (
    assigned_without_aggregation,
    compiled_outside_of_scope,
    counter_update_is_read_then_assign,
    metrics_summed_at_each_update,
    numbers_not_read_from_replicas,
    replicas_draw_alike,
    state_stays_on_its_replica,
    workers_draw_alike,
)
from tfdist.keras_compat.version import KerasInUse, keras_in_use

_Strategy = TypeVar("_Strategy", bound=tf.distribute.Strategy)

MENDS: tuple[Mend, ...] = (
    one_cpu_for_each_worker.MEND,
    collectives_shared_by_strategies.MEND,
    # Before gathers_refuse_types, which calls it for numbers.
    gathers_crash_without_entries.MEND,
    gathers_refuse_types.MEND,
    device_iterators_end_late.MEND,
    data_awaited_without_deadline.MEND,
    generator_arrays_overwritten.MEND,
    workers_shuffle_differently.MEND,
    dataset_functions_not_accepted.MEND,
    symbolic_build_averages_data.MEND,
    model_without_call.MEND,
    steps_counted_by_each_worker.MEND,
    logs_reduced_along_an_axis.MEND,
    # Before loss_divided_by_replicas, which wraps the `_make_function` that this mend installs. In the opposite order
    # the wrapper would never be called.
    steps_fail_in_a_loop.MEND,
    loss_divided_by_replicas.MEND,
    activity_regularizers_add_rows.MEND,
    losses_shared_by_replicas.MEND,
    scalars_counted_by_replicas.MEND,
    metrics_of_no_rows.MEND,
    gradients_used_before_the_sum.MEND,
    compression_needs_its_optimizer.MEND,
    wrapping_is_not_saved.MEND,
    sums_without_deadline.MEND,
    replicas_draw_alike.MEND,
    batch_statistics_stay_local.MEND,
    # After batch_statistics_stay_local, which wraps the moments of layers that are not synchronized.
    moments_lose_digits.MEND,
    metrics_summed_at_each_update.MEND,
    counter_update_is_read_then_assign.MEND,
    numbers_not_read_from_replicas.MEND,
    state_stays_on_its_replica.MEND,
    fit_keras3.MEND,
    fit_keras2.MEND,
    batch_logs_summed_over_workers.MEND,
    # Before loss_divided_by_replicas_keras2, which wraps the same method for several replicas.
    loss_called_on_one_replica.MEND,
    loss_divided_by_replicas_keras2.MEND,
    # After the mends of losses, whose gradients it notes.
    gradients_used_by_the_step.MEND,
    updates_in_a_condition.MEND,
    updates_in_a_function.MEND,
    batch_statistics_read_locally.MEND,
    statistics_of_an_empty_replica.MEND,
    convolution_of_no_rows.MEND,
    ctc_of_no_rows.MEND,
    state_shared_by_replicas.MEND,
    workers_draw_alike.MEND,
    constraint_without_aggregation.MEND,
    learning_rate_without_aggregation.MEND,
    nadam_counts_replicas.MEND,
    assigned_without_aggregation.MEND,
    jit_compile_on_several_devices.MEND,
    files_written_by_every_worker_keras3.MEND,
    files_written_by_every_worker_keras2.MEND,
    backup_owned_by_no_worker.MEND,
    logs_written_by_every_worker.MEND,
    csv_written_by_every_worker.MEND,
    orbax_knows_one_replica.MEND,
    initial_epoch_outlives_fit.MEND,
    predictions_repeated_by_replicas.MEND,
    # After the mends of `compile`, `fit` and `evaluate`, which then see the variables of the scope.
    compiled_outside_of_scope.MEND,
    # Last, so that its `fit` wraps the `fit` of the other mends, which then receive steps_per_epoch.
    endless_data_without_steps.MEND,
)

_applied: list[str] = []


def prepare_keras(strategy: _Strategy, kind: str) -> _Strategy:
    """Applies the mends that a strategy needs with the Keras in use, and returns the strategy.

    Args:
        strategy: a tf.distribute.Strategy.
        kind: the name of the strategy in create_strategy.

    Raises:
        ValueError: if the backend of Keras is not TensorFlow.
    """
    apply_mends(kind, keras_in_use(), strategy)
    strategy._tfdist_kind = kind
    return strategy


def apply_mends(kind: str, keras: KerasInUse, strategy: tf.distribute.Strategy | None) -> None:
    """Applies the mends that a strategy of this kind needs, except for mends that have been applied already.

    Args:
        kind: the name of the strategy in create_strategy.
        keras: the Keras in use.
        strategy: the strategy; None before it is made.
    """
    say_if_untested(keras)
    for mend in MENDS:
        if mend.name not in _applied and mend.suits(kind, keras, strategy) and defect_present(mend, keras):
            mend.apply()
            _applied.append(mend.name)
            get_logger().debug("applied the mend %s (%s) for the strategy %s", mend.name, mend.issue, kind)


def applied_mends() -> tuple[str, ...]:
    """Returns the names of the mends that have been applied in this process, in the order of application.

    Example:
        >>> import tfdist
        >>> strategy = tfdist.create_strategy("one_device")
        >>> isinstance(tfdist.keras_compat.applied_mends(), tuple)
        True
    """
    return tuple(_applied)
