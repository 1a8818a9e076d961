"""create_optimizer: the whole recipe for a global batch, from one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdist._optimizer_names import DECAYS, OPTIMIZERS, SCALINGS
from tfdist.keras_compat.version import keras
from tfdist.optimizers.scaling import epochs_to_steps, scale_learning_rate
from tfdist.optimizers.warmup import LinearWarmup

# The rule that each optimizer's authors use.
_RULES = {"sgd": "linear", "lars": "linear"}


def create_optimizer(
    name: str,
    *,
    learning_rate: float,
    global_batch_size: int,
    steps_per_epoch: float,
    epochs: float,
    base_batch_size: int = 256,
    scaling: str = "auto",
    warmup_epochs: float = 0,
    decay: str = "none",
    weight_decay: float | None = None,
    exclude: Sequence[str] = (),
    momentum: float | None = None,
    **options: Any,
) -> Any:
    """Returns an optimizer with its scaled learning rate, warmup and decay.

    Args:
        name: sgd (MomentumCorrectedSGD), adam, adamw, rmsprop, lars, lamb, or tfa_lamb with TensorFlow Addons.
        learning_rate: that suits base_batch_size.
        global_batch_size: records a step over all replicas.
        steps_per_epoch: of the whole job, not of one worker; updates, so that with accumulation over k batches it is
            the batches of an epoch over k.
        epochs: of the whole training, at whose end a decay ends.
        base_batch_size: records a step at which learning_rate was found good.
        scaling: linear, sqrt, none, or auto: linear for sgd and lars, sqrt for the others.
        warmup_epochs: how long the rate grows; 0 for none. Need not be whole.
        decay: none, linear, cosine, or polynomial (of degree 2), to 0.
        weight_decay: of sgd (added to the gradient), adamw (a step of its own), lars and lamb (inside the trust ratio);
            None is Keras's 0.004 for adamw, else 0.
        exclude: of sgd, lars and lamb, regular expressions; variables in whose path one is found have neither decay nor
            trust ratio.
        momentum: of sgd and lars; None is 0.9.
        **options: of the optimizer itself, such as clipnorm, nesterov or eeta.

    Raises:
        ValueError: for an unknown name, rule or decay; decay, momentum or exclusions that an optimizer cannot use;
            a warmup longer than the training; TensorFlow Addons missing.

    Example:
        >>> from tfdist.optimizers import create_optimizer
        >>> optimizer = create_optimizer(
        ...     "lamb", learning_rate=0.001, global_batch_size=4096, steps_per_epoch=15, epochs=20, warmup_epochs=2,
        ...     decay="cosine", weight_decay=0.01, exclude=["bias", "normalization"],
        ... )
        >>> type(optimizer).__name__
        'LAMB'
    """
    if "exclude_from_weight_decay" in options:
        raise ValueError(
            "expected exclude for the exclusions of a recipe, received exclude_from_weight_decay; rename it."
        )
    _check(name, scaling, decay, epochs, warmup_epochs, weight_decay, exclude, momentum)
    rule = _RULES.get(name, "sqrt") if scaling == "auto" else scaling
    rate: Any = learning_rate
    if rule != "none":
        rate = scale_learning_rate(
            learning_rate, global_batch_size=global_batch_size, base_batch_size=base_batch_size, rule=rule
        )
    rate = _decayed(rate, decay, max(1, epochs_to_steps(epochs, steps_per_epoch=steps_per_epoch)))
    if warmup_epochs:
        rate = LinearWarmup(rate, max(1, epochs_to_steps(warmup_epochs, steps_per_epoch=steps_per_epoch)))
    return _optimizer(name, rate, weight_decay=weight_decay, exclude=list(exclude), momentum=momentum, options=options)


def _check(
    name: str,
    scaling: str,
    decay: str,
    epochs: float,
    warmup_epochs: float,
    weight_decay: float | None,
    exclude: Any,
    momentum: float | None,
) -> None:
    for option, value, known in (
        ("name", name, OPTIMIZERS),
        ("scaling", scaling, SCALINGS),
        ("decay", decay, DECAYS),
    ):
        if value not in known:
            raise ValueError(f"expected {option} to be one of {', '.join(known)}, received {value!r}; choose one.")
    if isinstance(exclude, str):
        raise ValueError(f"expected exclude to be a list of regular expressions, received {exclude!r}; put it in one.")
    if name in ("adam", "rmsprop") and weight_decay:
        raise ValueError(f"expected no weight_decay for {name}, received {weight_decay}; take adamw or lamb.")
    if name in ("adam", "adamw", "rmsprop") and exclude:
        raise ValueError(f"expected no exclude for {name}, received {list(exclude)}; take sgd, lars or lamb.")
    if weight_decay is not None and not weight_decay >= 0:
        raise ValueError(f"expected weight_decay to be 0 or more, received {weight_decay}; give another.")
    if name not in ("sgd", "lars") and momentum is not None:
        raise ValueError(f"expected no momentum for {name}, received {momentum}; take sgd or lars.")
    if epochs <= 0 or not 0 <= warmup_epochs <= epochs:
        raise ValueError(
            f"expected epochs above 0 and warmup_epochs from 0 to {epochs}, received {epochs} and {warmup_epochs}; "
            "shorten the warmup."
        )


def _decayed(rate: float, decay: str, steps: int) -> Any:
    schedules = keras().optimizers.schedules
    if decay == "none":
        return rate
    if decay == "cosine":
        return schedules.CosineDecay(rate, steps)
    return schedules.PolynomialDecay(rate, steps, end_learning_rate=0.0, power=1.0 if decay == "linear" else 2.0)


def _optimizer(
    name: str,
    rate: Any,
    *,
    weight_decay: float | None,
    exclude: list[str],
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
    excluded: dict[str, Any] = {"exclude_from_weight_decay": exclude, "weight_decay": weight_decay or 0.0}
    momentum = 0.9 if momentum is None else momentum
    if name == "sgd":
        from tfdist.optimizers.momentum_corrected_sgd import MomentumCorrectedSGD

        return MomentumCorrectedSGD(rate, momentum=momentum, **excluded, **options)
    if name == "lars":
        from tfdist.optimizers.lars import LARS

        return LARS(rate, momentum=momentum, **excluded, **options)
    if name == "tfa_lamb":
        from tfdist.optimizers.tfa_lamb import tfa_lamb

        return tfa_lamb(rate, **excluded, **options)
    from tfdist.optimizers.lamb import LAMB

    return LAMB(rate, **excluded, **options)
