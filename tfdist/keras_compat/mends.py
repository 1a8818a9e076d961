"""The list of guarded patches, and the rule by which they are applied.

A mend is applied only when a strategy that needs it is built, only to a Keras in which its check finds the defect, and
only once. Each lives in a file of its own, named after the defect, and has a canary test that fails once upstream has
mended it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfdist._log import get_logger
from tfdist.keras_compat.which import KerasInUse


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mend:
    """A guarded patch of upstream code.

    Attributes:
        name: the name of the file it lives in.
        issue: the upstream issue, such as "keras-team/keras#20585".
        strategies: the strategies that need it.
        keras: the Kerases that it is for, by KerasInUse.name.
        versions: (first, last) release that it was written against, such as ((3, 15), (3, 15)).
        defect_present: whether the installed Keras still has the defect.
        apply: puts the patch in place.
    """

    name: str
    issue: str
    strategies: tuple[str, ...]
    keras: tuple[str, ...]
    versions: tuple[tuple[int, int], tuple[int, int]]
    defect_present: Callable[[], bool]
    apply: Callable[[], None]

    def suits(self, kind: str, keras: KerasInUse) -> bool:
        """Whether a strategy of this kind needs it with this Keras."""
        first, last = self.versions
        return kind in self.strategies and keras.name in self.keras and first <= keras.release <= last


_applied: list[str] = []


def all_mends() -> list[Mend]:
    """Returns every mend, in the order in which they are applied."""
    from tfdist.keras_compat import (
        backup_owned_by_no_worker,
        batch_logs_summed_over_workers,
        batch_statistics_read_locally,
        batch_statistics_stay_local,
        constraint_without_aggregation,
        convolution_of_no_rows,
        counter_update_is_read_then_assign,
        csv_written_by_every_worker,
        device_iterators_end_late,
        files_written_by_every_worker_keras2,
        files_written_by_every_worker_keras3,
        gradients_used_before_the_sum,
        jit_compile_on_several_devices,
        learning_rate_without_aggregation,
        logs_reduced_along_an_axis,
        logs_written_by_every_worker,
        loss_divided_by_replicas,
        loss_divided_by_replicas_keras2,
        losses_shared_by_replicas,
        parameter_server_fit_keras2,
        parameter_server_fit_keras3,
        replicas_draw_alike,
        statistics_of_an_empty_replica,
        steps_counted_by_each_worker,
        steps_fail_in_a_loop,
        symbolic_build_averages_data,
        workers_draw_alike,
    )

    modules = (
        device_iterators_end_late,
        symbolic_build_averages_data,
        steps_counted_by_each_worker,
        logs_reduced_along_an_axis,
        # Makes the function of a step, which the next one tells about its batch.
        steps_fail_in_a_loop,
        loss_divided_by_replicas,
        losses_shared_by_replicas,
        gradients_used_before_the_sum,
        replicas_draw_alike,
        batch_statistics_stay_local,
        counter_update_is_read_then_assign,
        parameter_server_fit_keras3,
        parameter_server_fit_keras2,
        batch_logs_summed_over_workers,
        loss_divided_by_replicas_keras2,
        batch_statistics_read_locally,
        statistics_of_an_empty_replica,
        convolution_of_no_rows,
        workers_draw_alike,
        constraint_without_aggregation,
        learning_rate_without_aggregation,
        jit_compile_on_several_devices,
        files_written_by_every_worker_keras3,
        files_written_by_every_worker_keras2,
        backup_owned_by_no_worker,
        logs_written_by_every_worker,
        csv_written_by_every_worker,
    )
    return [module.MEND for module in modules]


def apply_mends(kind: str, keras: KerasInUse) -> None:
    """Applies the mends that a strategy of this kind needs and that are not in place yet."""
    for mend in all_mends():
        if mend.name not in _applied and mend.suits(kind, keras) and mend.defect_present():
            mend.apply()
            _applied.append(mend.name)
            get_logger().debug("mended %s (%s) for %s", mend.name, mend.issue, kind)


def applied_mends() -> tuple[str, ...]:
    """Returns the names of the mends in place in this process.

    Example:
        >>> from tfdist.keras_compat import applied_mends
        >>> isinstance(applied_mends(), tuple)
        True
    """
    return tuple(_applied)
