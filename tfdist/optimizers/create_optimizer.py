"""create_optimizer: an optimizer with learning-rate scaling, warmup, decay and weight decay, from one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdist._log import get_logger
from tfdist._optimizer_names import DECAYS, OPTIMIZERS, SCALINGS, TAKERS, alternatives
from tfdist.keras_compat.version import keras
from tfdist.optimizers.exclusions import check_patterns
from tfdist.optimizers.per_update import PerUpdate
from tfdist.optimizers.scaling import epochs_to_steps, scale_learning_rate
from tfdist.optimizers.warmup import LinearWarmup

# Scaling "auto" follows the authors of each optimizer; all optimizers that are not listed use the square root.
_AUTO_SCALING = {"sgd": "linear", "momentum_corrected_sgd": "linear", "lars": "linear"}


def create_optimizer(
    name: str,
    *,
    learning_rate: float,
    learning_rate_scaling: str = "none",
    global_batch_size: int | None = None,
    base_batch_size: int | None = None,
    warmup_epochs: float = 0,
    learning_rate_decay: str = "none",
    steps_per_epoch: float | None = None,
    epochs: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    exclude_from_weight_decay: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Returns an optimizer, with optional scaling, warmup and decay of its learning rate.

    Args:
        name: sgd, adam, adamw or rmsprop, which are Keras's optimizers with Keras's semantics; momentum_corrected_sgd,
            lars or lamb, which are MomentumCorrectedSGD, LARS and LAMB; tfa_lamb, the LAMB of TensorFlow Addons.
        learning_rate: the learning rate after the warmup and before any decay; with learning_rate_scaling, the rate
            for base_batch_size.
        learning_rate_scaling: how the learning rate changes with the batch size: none, linear, sqrt, or auto, which is
            linear for sgd, momentum_corrected_sgd and lars and sqrt for the others. The scaled rate is logged.
        global_batch_size: number of records in a step, over all replicas. Required with learning_rate_scaling.
        base_batch_size: global batch size for which learning_rate was tuned. Required with learning_rate_scaling,
            refused without it.
        warmup_epochs: number of epochs in which the learning rate grows linearly, whole or a fraction; 0 for no warmup.
        learning_rate_decay: how the learning rate falls to 0 over all epochs: none, linear, cosine, or polynomial (of
            degree 2).
        steps_per_epoch: number of updates in an epoch, of the whole job. If k batches are accumulated for an update,
            by gradient_accumulation_steps=k or by DistributedOptimizer, this is the number of batches divided by k.
            Required with warmup_epochs or learning_rate_decay.
        epochs: number of epochs of the whole training. Required with warmup_epochs or learning_rate_decay.
        momentum: for sgd, momentum_corrected_sgd and lars. None means 0 for sgd, as in Keras, and 0.9 for the others.
        weight_decay: None means 0.004 for adamw, as in Keras, and no decay for the others. sgd and adamw decay every
            variable in a separate update, w -= learning_rate * weight_decay * w; momentum_corrected_sgd adds the decay
            to the gradient; lars and lamb apply it inside the trust ratio.
        exclude_from_weight_decay: for momentum_corrected_sgd, lars, lamb and tfa_lamb, regular expressions that are
            searched for in the paths of the variables; a variable that matches has neither weight decay nor trust
            ratio. Refused for sgd and adamw, because Keras does not save the exclusions of its own optimizers.
        **options: arguments of the optimizer itself, such as clipnorm, nesterov or eeta.

    Raises:
        ValueError: for an unknown name, scaling or decay; for an option that is missing or that the optimizer does
            not support; for a warmup longer than the training; for tfa_lamb without TensorFlow Addons.

    Example:
        >>> from tfdist.optimizers import create_optimizer
        >>> type(create_optimizer("adam", learning_rate=0.001)).__name__
        'Adam'
        >>> optimizer = create_optimizer(
        ...     "lamb", learning_rate=0.001, learning_rate_scaling="sqrt", base_batch_size=256, global_batch_size=4096,
        ...     warmup_epochs=2, learning_rate_decay="cosine", steps_per_epoch=15, epochs=20,
        ...     weight_decay=0.01, exclude_from_weight_decay=["bias", "normalization"],
        ... )
        >>> type(optimizer).__name__
        'LAMB'
    """
    for option, value, known in (
        ("name", name, OPTIMIZERS),
        ("learning_rate_scaling", learning_rate_scaling, SCALINGS),
        ("learning_rate_decay", learning_rate_decay, DECAYS),
    ):
        if value not in known:
            raise ValueError(f"expected {option} to be one of {', '.join(known)}, received {value!r}.")
    exclusions = list(check_patterns(exclude_from_weight_decay, "exclude_from_weight_decay") or ())
    _check_takers(
        name, {**options, "momentum": momentum, "weight_decay": weight_decay, "exclude_from_weight_decay": exclusions}
    )
    if weight_decay is not None and not weight_decay >= 0:
        raise ValueError(f"expected weight_decay to be 0 or more, received {weight_decay}.")
    rate = _scaled(name, learning_rate, learning_rate_scaling, global_batch_size, base_batch_size)
    rate = _scheduled(rate, learning_rate_decay, warmup_epochs, steps_per_epoch, epochs)
    accumulated = options.get("gradient_accumulation_steps")
    if accumulated and callable(rate):
        rate = PerUpdate(rate, accumulated)
    return _build(name, rate, weight_decay=weight_decay, exclusions=exclusions, momentum=momentum, options=options)


def _check_takers(name: str, given: dict[str, Any]) -> None:
    for option, takers in TAKERS.items():
        value = given.get(option)
        # A decay of 0 and an empty list have no effect, so that every optimizer accepts them.
        asks = value is not None if option == "momentum" else bool(value)
        if asks and name not in takers:
            raise ValueError(
                f"expected no {option} for {name}, received {value}; leave it out, or use {alternatives(takers)}."
            )


def _scaled(
    name: str, learning_rate: float, scaling: str, global_batch_size: int | None, base_batch_size: int | None
) -> float:
    if scaling == "none":
        if base_batch_size is not None:
            raise ValueError(
                f"expected no base_batch_size with learning_rate_scaling='none', received {base_batch_size}; choose a "
                "scaling, or leave base_batch_size out."
            )
        return learning_rate
    if global_batch_size is None or base_batch_size is None:
        raise ValueError(
            f"expected global_batch_size and base_batch_size with learning_rate_scaling={scaling!r}, received "
            f"{global_batch_size} and {base_batch_size}; give both, or leave learning_rate_scaling out."
        )
    rule = _AUTO_SCALING.get(name, "sqrt") if scaling == "auto" else scaling
    rate = scale_learning_rate(
        learning_rate, global_batch_size=global_batch_size, base_batch_size=base_batch_size, rule=rule
    )
    get_logger().info(
        "learning rate scaled from %g, for a batch of %d, to %g, for a batch of %d (%s)",
        learning_rate,
        base_batch_size,
        rate,
        global_batch_size,
        rule,
    )
    return rate


def _scheduled(
    rate: float, decay: str, warmup_epochs: float, steps_per_epoch: float | None, epochs: float | None
) -> Any:
    if decay == "none" and not warmup_epochs:
        return rate
    if steps_per_epoch is None or epochs is None:
        raise ValueError(
            f"expected steps_per_epoch and epochs with warmup_epochs={warmup_epochs} and learning_rate_decay={decay!r}"
            f", received {steps_per_epoch} and {epochs}; give both."
        )
    if epochs <= 0 or not 0 <= warmup_epochs <= epochs:
        raise ValueError(
            f"expected epochs above 0 and warmup_epochs from 0 to {epochs}, received {epochs} and {warmup_epochs}."
        )
    schedule = _decayed(rate, decay, max(1, epochs_to_steps(epochs, steps_per_epoch=steps_per_epoch)))
    if warmup_epochs:
        return LinearWarmup(schedule, max(1, epochs_to_steps(warmup_epochs, steps_per_epoch=steps_per_epoch)))
    return schedule


def _decayed(rate: float, decay: str, steps: int) -> Any:
    schedules = keras().optimizers.schedules
    if decay == "none":
        return rate
    if decay == "cosine":
        return schedules.CosineDecay(rate, steps)
    return schedules.PolynomialDecay(rate, steps, end_learning_rate=0.0, power=1.0 if decay == "linear" else 2.0)


def _build(
    name: str,
    rate: Any,
    *,
    weight_decay: float | None,
    exclusions: list[str],
    momentum: float | None,
    options: dict[str, Any],
) -> Any:
    optimizers = keras().optimizers
    if name == "adam":
        return optimizers.Adam(rate, **options)
    if name == "rmsprop":
        return optimizers.RMSprop(rate, **options)
    if name == "adamw":
        if weight_decay is not None:
            options = {**options, "weight_decay": weight_decay}
        return optimizers.AdamW(rate, **options)
    if name == "sgd":
        return optimizers.SGD(rate, momentum=float(momentum or 0), weight_decay=weight_decay or None, **options)
    decay: dict[str, Any] = {"exclude_from_weight_decay": exclusions, "weight_decay": weight_decay or 0.0}
    momentum = 0.9 if momentum is None else momentum
    if name == "momentum_corrected_sgd":
        from tfdist.optimizers.momentum_corrected_sgd import MomentumCorrectedSGD

        return MomentumCorrectedSGD(rate, momentum=momentum, **decay, **options)
    if name == "lars":
        from tfdist.optimizers.lars import LARS

        return LARS(rate, momentum=momentum, **decay, **options)
    if name == "tfa_lamb":
        from tfdist.optimizers.tfa_lamb import tfa_lamb

        return tfa_lamb(rate, **decay, **options)
    from tfdist.optimizers.lamb import LAMB

    return LAMB(rate, **decay, **options)
