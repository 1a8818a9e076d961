"""Finds the likely cause of a difference, by experiments that remove one possible cause each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from tfdist.verify.compare import error_of
from tfdist.verify.values import AS_IT_IS, Experiment, Record

# Initial weights are drawn by the same operations everywhere, so that they are equal but for rounding.
_INITIAL = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause:
    """A likely cause of a difference.

    Attributes:
        name: short name, such as "batch normalization".
        text: one sentence that names the layers, settings or rows, and says what to use instead.
        is_proven: whether the recorded settings or layers show the cause, or a run without it was equal.
    """

    name: str
    text: str
    is_proven: bool = False


# The cause of a difference that is no larger than the effect of rounding.
ROUNDING = Cause(
    name="rounding",
    text="on one device, a change of 1e-13 of the initial weights has the same effect; usual reasons are weights whose "
    "gradients are zero but for rounding, which Adam amplifies, and operations that compute in float32, such as CTC",
    is_proven=True,
)


def unrepeatable(change: str) -> Cause:
    """Returns the cause of a program that computes other numbers when it runs again on one device.

    Args:
        change: what the second run computes otherwise than the first one.
    """
    return Cause(
        name="not repeatable",
        text=f"two runs on one device differ as well, first in {change}; seed all that is drawn, as in "
        "np.random.default_rng(1), and verify the program again",
        is_proven=True,
    )


def settings_that_differ(expected: Record, records: tuple[Record, ...]) -> list[str]:
    """Returns the settings and initial weights of a compiled model that are not those of one device, as texts.

    Args:
        expected: the record of one device.
        records: the records of the workers.

    Example:
        >>> from tfdist.verify.causes import settings_that_differ
        >>> from tfdist.verify.values import Record
        >>> one, two = ({"optimizer learning_rate": rate} for rate in ("0.1", "0.2"))
        >>> settings_that_differ(Record(config=one), (Record(config=two),))
        ['optimizer learning_rate is 0.2 instead of 0.1']
    """
    found = []
    for rank, record in enumerate(records):
        where = f" on worker {rank}" if len(records) > 1 else ""
        for name, value in expected.initial.items():
            if name in record.initial and error_of(record.initial[name], value) > _INITIAL:
                found.append(f"the initial value of {name} is another{where}")
        for name, value in expected.config.items():
            own = record.config.get(name)
            if own != value:
                found.append(f"{name} is {own} instead of {value}{where}")
    return found


def candidates(expected: Record, records: tuple[Record, ...], *, data: str) -> list[tuple[Cause, Experiment]]:
    """Returns the possible causes of a difference, each with the experiment that removes it.

    Args:
        expected: the record of one device.
        records: the records of the workers.
        data: how the data differ from those of one device; "" if they do not.
    """
    first = records[0]
    found: list[tuple[Cause, Experiment]] = []
    if data:
        found.append((_different_data(data), Experiment(replays=True)))
    normalizations = expected.batch_normalizations
    if normalizations:
        found.append(
            (
                Cause(
                    name="batch normalization",
                    text=f"{_listed(normalizations)}: normalization with the rows of one replica; use "
                    "create_strategy(sync_batch_norm=True) or tfdist.layers.SyncBatchNormalization",
                ),
                Experiment(synchronizes=True),
            )
        )
    noisy = [*expected.noisy, *expected.drawing]
    if noisy:
        found.append(
            (
                Cause(
                    name="random layers" if expected.noisy else "random numbers",
                    text=f"{_listed(noisy)}: each replica draws its own random numbers, which is meant",
                ),
                Experiment(removes_noise=True),
            )
        )
    if "compression" in first.config.get("all_reduce", "") and "compression=None" not in first.config["all_reduce"]:
        found.append(
            (
                Cause(name="compression", text="gradients are compressed, which rounds or delays them"),
                Experiment(uncompressed=True),
            )
        )
    if expected.is_loop:
        # The rule for losses does not apply to a loop of the program.
        return found
    if any("rule global_sum" in line for line in first.lines):
        cause = Cause(
            name="division",
            text="the program reads the number of replicas but gives losses as means over a replica's rows; use "
            'create_strategy(loss="replica_mean")',
        )
        return [*found, (cause, Experiment(loss="replica_mean"))]
    cause = Cause(
        name="division",
        text="losses are sums over rows, or are divided by the global batch, while tfdist takes them as means; use "
        'means, or create_strategy(loss="global_sum")',
    )
    return [*found, (cause, Experiment(loss="global_sum"))]


def combined(experiments: list[Experiment]) -> Experiment:
    """Returns an experiment that removes all causes of the given ones, with the last one's rule for losses."""
    result = AS_IT_IS
    for one in experiments:
        changed = {
            field.name: getattr(one, field.name)
            for field in dataclasses.fields(one)
            if getattr(one, field.name) != getattr(AS_IT_IS, field.name)
        }
        result = dataclasses.replace(result, **changed)
    return result


def find_causes(
    found: list[tuple[Cause, Experiment]],
    is_equal: Callable[[Experiment], bool],
    leftover: Cause,
    *,
    expected: Sequence[str] = (),
) -> list[Cause]:
    """Returns the causes without which a run is equal to one device.

    Each cause is removed by itself first. If no single one is enough, all causes but the rules for losses are removed
    together, and then each of them is put back.

    Args:
        found: the possible causes and their experiments.
        is_equal: runs an experiment, and returns whether it is equal to one device.
        leftover: the cause to report if no experiment makes the run equal.
        expected: names of the causes on another topology, whose experiment is tried first.
    """
    same = [(cause, experiment) for cause, experiment in found if cause.name in expected]
    if len(same) > 1 and len(same) == len(expected) and is_equal(combined([experiment for _, experiment in same])):
        return [dataclasses.replace(cause, is_proven=True) for cause, _ in same]
    for cause, experiment in sorted(found, key=lambda one: one[0].name not in expected):
        if is_equal(experiment):
            return [dataclasses.replace(cause, is_proven=True)]
    joint = [(cause, experiment) for cause, experiment in found if experiment.loss is None]
    rules = [(cause, experiment) for cause, experiment in found if experiment.loss is not None]
    for extra in [[], *([rule] for rule in rules)]:
        chosen = [*joint, *extra]
        if len(chosen) < 2 or not is_equal(combined([experiment for _, experiment in chosen])):
            continue
        needed = list(chosen)
        for one in chosen:
            fewer = [other for other in needed if other is not one]
            if fewer and is_equal(combined([experiment for _, experiment in fewer])):
                needed = fewer
        return [dataclasses.replace(cause, is_proven=True) for cause, _ in needed]
    return [leftover]


def leftover_of(
    expected: Record,
    records: tuple[Record, ...],
    differences: list[str],
    *,
    data: str = "",
    weights_differ: bool = True,
) -> Cause:
    """Returns the cause to report if no experiment makes a run equal to one device.

    Args:
        expected: the record of one device.
        records: the records of the workers.
        differences: settings that differ.
        data: how the data differ from those of one device; "" if they do not.
        weights_differ: whether weights differ, and not only losses and metrics.
    """
    if differences:
        return Cause(
            name="settings", text=f"{'; '.join(differences)}; use the same settings everywhere", is_proven=True
        )
    if expected.mixing:
        return Cause(
            name="statistics over the batch",
            text=f"{_listed(expected.mixing)} computes over the rows of a replica; gather those of all replicas with "
            "tfdist.collectives.all_gather, or use tf.distribute.get_replica_context().all_reduce",
            is_proven=True,
        )
    if data:
        return _different_data(data)
    if not weights_differ:
        return Cause(
            name="metrics",
            text="all weights are equal, but losses or metrics of replicas are put together in another way than their "
            'rows; give a keras.metrics.Mean the values of the rows, and use strategy.reduce("SUM", ...) for a loss '
            "that is divided by the rows of the global batch",
        )
    if expected.is_loop:
        return Cause(
            name="division",
            text="the loop of the program probably takes means over the rows of a replica, whose gradients are added "
            "up; divide losses by the rows of the global batch, as tf.nn.compute_average_loss does",
        )
    if any("rule global_sum" in line for line in records[0].lines):
        return Cause(
            name="division",
            text="the program divides some losses for all replicas and gives others as means over a replica's rows; "
            "divide all of them or none",
        )
    return Cause(
        name="statistics over the batch",
        text="no layer is the cause, so the loss or train_step probably computes over the rows of a replica (a "
        "standard deviation, a contrastive loss, gradients clipped before their sum); gather the rows of all replicas "
        "with tfdist.collectives.all_gather",
    )


def _different_data(data: str) -> Cause:
    return Cause(
        name="data",
        text=f"the data differ: {data}; use tfdist.input.distribute_files, or let each input pipeline read its own "
        "part of every global batch",
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
