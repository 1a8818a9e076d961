"""Follows the rows through operations on single entries, and through sums and means over axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.keras_compat.losses.following_rows.followed import (
    SHARED,
    Followed,
    NotFollowed,
    Rule,
    axes_of,
    entries_of,
    rank_of,
)

# Operations on single entries, by what they do to the power of the rows.
_UNCHANGED = (
    "Abs",
    "Cast",
    "CheckNumerics",
    "Identity",
    "LeakyRelu",
    "Neg",
    "PreventGradient",
    "Relu",
    "Snapshot",
    "StopGradient",
)
_PLAIN = (
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atan2",
    "Atanh",
    "Ceil",
    "Cos",
    "Cosh",
    "Digamma",
    "Elu",
    "Erf",
    "Erfc",
    "Exp",
    "Expm1",
    "Floor",
    "FloorDiv",
    "FloorMod",
    "IsFinite",
    "IsInf",
    "Lgamma",
    "Log",
    "Log1p",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Mod",
    "OnesLike",
    "Relu6",
    "Rint",
    "Round",
    "Selu",
    "Sigmoid",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Tan",
    "Tanh",
    "TruncateDiv",
    "Xdivy",
    "Xlog1py",
    "Xlogy",
)
_COMPARED = ("Equal", "Greater", "GreaterEqual", "IsNan", "Less", "LessEqual", "NotEqual", "Sign", "ZerosLike")
_ADDED = ("Add", "AddN", "AddV2", "ClipByValue", "Maximum", "Minimum", "Select", "SelectV2", "Sub")
_LINEAR = ("Add", "AddN", "AddV2", "Cast", "Identity", "Neg", "Sub")
_SCALED = ("Div", "Mul", "RealDiv")


Power = Callable[[tf.Operation, Sequence[Followed]], float]


def is_sum_over_rows(operation: tf.Operation, given: Sequence[Followed]) -> bool:
    """Returns whether an operation is a sum or a mean over axes that include that of the rows."""
    if operation.type == "L2Loss":
        return given[0].axis is not None
    return operation.type in ("Sum", "Mean") and given[0].axis is not None and given[0].axis in axes_of(operation)


def _on_entries(power: Power) -> Rule:
    def rule(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
        depth, axis = max(one.depth for one in given), _broadcast_axis(operation, given)
        return Followed(
            axis=axis,
            depth=depth,
            power=power(operation, given) if depth else 0.0,
            is_linear=depth == 0 or (axis is None and _stays_linear(operation, given)),
            entries=1 if axis is None else entries_of(given),
            is_selected=any(one.is_selected for one in given),
        )

    return rule


def _broadcast_axis(operation: tf.Operation, given: Sequence[Followed]) -> int | None:
    """Returns the axis of the rows in the result; all operands that have rows have them there."""
    rank, pairs = rank_of(operation.outputs[0]), list(zip(given, operation.inputs, strict=True))
    places = {one.axis + rank - rank_of(tensor) for one, tensor in pairs if one.axis is not None}
    if len(places) > 1:
        raise NotFollowed
    axis = next(iter(places), None)
    for one, tensor in pairs:
        own = None if axis is None or one.axis is not None else axis - rank + rank_of(tensor)
        if own is not None and own >= 0 and tensor.shape[own] != 1 and not _is_uniform(tensor):
            # It has an entry for each row, whatever the rows.
            raise NotFollowed
    return axis


def _is_uniform(tensor: tf.Tensor) -> bool:
    """Returns whether all entries of a tensor are the same, as of ones of the shape of a known batch."""
    value = tf.get_static_value(tensor)
    if value is not None:
        return bool((value == value.ravel()[:1]).all())
    return tensor.op.type in ENTRIES and all(map(_is_uniform, tensor.op.inputs))


def _stays_linear(operation: tf.Operation, given: Sequence[Followed]) -> bool:
    if operation.type in _SCALED:
        is_scaled = given[1].depth == 0 or (operation.type == "Mul" and given[0].depth == 0)
        return is_scaled and all(one.is_linear for one in given)
    return operation.type in _LINEAR and all(one.is_linear for one in given)


def _same(operation: tf.Operation, given: Sequence[Followed]) -> float:
    return given[0].power


def none(operation: tf.Operation, given: Sequence[Followed]) -> float:
    """Returns 0 for operations that take nothing that grows with the rows."""
    if any(one.power for one in given):
        raise NotFollowed
    return 0.0


def alike(operation: tf.Operation, given: Sequence[Followed]) -> float:
    """Beside a sum over rows, only others and what is the same for any batch, such as a small constant, are added."""
    added = given[1:] if operation.type in ("Select", "SelectV2") else given
    powers = {one.power for one in added if one != SHARED}
    if len(powers) > 1:
        raise NotFollowed
    return next(iter(powers), 0.0)


def _compared(operation: tf.Operation, given: Sequence[Followed]) -> float:
    alike(operation, given)
    return 0.0


def _raised(operation: tf.Operation, given: Sequence[Followed]) -> float:
    exponent = tf.get_static_value(operation.inputs[1])
    if given[1].depth or exponent is None or exponent.ndim:
        return none(operation, given)
    return given[0].power * float(exponent)


def _reduced(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    values = given[0]
    if operation.type == "L2Loss":
        if values.axis is None or not operation.inputs[0].shape.rank:
            raise NotFollowed
        return Followed(depth=values.depth + 1, power=2 * values.power + 1, is_linear=False)
    axes, keeps = axes_of(operation), operation.get_attr("keep_dims")
    is_linear = values.is_linear and operation.type in ("Sum", "Mean")
    if values.axis is None or values.axis not in axes:
        if operation.type in ("Prod", "EuclideanNorm", "All", "Any"):
            none(operation, given)
        before = 0 if keeps or values.axis is None else sum(axis < values.axis for axis in axes)
        return dataclasses.replace(
            values, axis=None if values.axis is None else values.axis - before, is_linear=is_linear or not values.depth
        )
    if operation.type not in ("Sum", "Mean") or not operation.outputs[0].shape.is_fully_defined():
        raise NotFollowed
    is_mean = operation.type == "Mean"
    return Followed(
        depth=values.depth + 1,
        power=values.power + (not is_mean),
        is_linear=is_mean and not values.depth and not values.is_selected,
    )


def _powers(names: Sequence[str], power: Power) -> dict[str, Rule]:
    return dict.fromkeys(names, _on_entries(power))


ENTRIES: dict[str, Rule] = {
    **_powers(_UNCHANGED, _same),
    **_powers(_PLAIN, none),
    **_powers(_COMPARED, _compared),
    **_powers(_ADDED, alike),
    **_powers(("Mul", "MulNoNan"), lambda _, given: given[0].power + given[1].power),
    **_powers(("Div", "DivNoNan", "RealDiv"), lambda _, given: given[0].power - given[1].power),
    **_powers(("Inv", "Reciprocal"), lambda _, given: -given[0].power),
    **_powers(("Square",), lambda _, given: 2 * given[0].power),
    **_powers(("SquaredDifference",), lambda operation, given: 2 * alike(operation, given)),
    **_powers(("Sqrt",), lambda _, given: given[0].power / 2),
    **_powers(("Rsqrt",), lambda _, given: -given[0].power / 2),
    **_powers(("Pow",), _raised),
    **dict.fromkeys(("All", "Any", "EuclideanNorm", "L2Loss", "Max", "Mean", "Min", "Prod", "Sum"), _reduced),
}
