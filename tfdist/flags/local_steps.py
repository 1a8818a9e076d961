"""The flags of LocalSGD: replicas that train on their own for some steps."""

from __future__ import annotations

from typing import Any

from absl import flags

_PARTS = ("weights", "slots", "statistics")
_RULES = ("average", "block_momentum", "nesterov", "elastic")
# The elastic rate times the number of replicas, as in the paper of EASGD (1412.6651).
_ELASTIC = 0.9


def is_asked(flag_values: flags.FlagValues) -> bool:
    """Returns whether the flags ask for LocalSGD.

    Raises:
        ValueError: if they ask for options of LocalSGD without --local_steps.
    """
    if flag_values.local_steps is not None:
        return True
    for name, default in (("outer", "average"), ("local_start_step", 0), ("local_average", list(_PARTS))):
        # A file of flags that absl writes contains the default values.
        if flag_values[name].value != default:
            raise ValueError(
                f"expected --local_steps with --{name}, received none; write for example --local_steps=16."
            )
    return False


def local_sgd_from_flags(optimizer: Any, flag_values: flags.FlagValues) -> Any:
    """Returns tfdist.averaging.LocalSGD of an optimizer, as the flags say.

    Args:
        optimizer: any optimizer of the Keras in use, made in the scope of the strategy.
        flag_values: parsed flags of the group "strategy".

    Raises:
        ValueError: if the flags ask for several backward passes, too.
    """
    import tensorflow as tf

    from tfdist.averaging import ElasticAverage, LocalSGD

    passes = flag_values.backward_passes_per_step
    if passes != 1:
        raise ValueError(
            f"expected --backward_passes_per_step=1 with --local_steps, received {passes}; leave one of them out."
        )
    outer: Any = flag_values.outer
    if outer == "elastic":
        outer = ElasticAverage(rate=_ELASTIC / tf.distribute.get_strategy().num_replicas_in_sync)
    return LocalSGD(
        optimizer,
        every=flag_values.local_steps,
        start_step=flag_values.local_start_step,
        outer=outer,
        average=flag_values.local_average,
    )


def _are_parts(parts: list[str]) -> bool:
    if "weights" not in parts or not set(parts) <= set(_PARTS):
        raise flags.ValidationError(
            f"expected a list out of {', '.join(_PARTS)} that contains weights, received {', '.join(parts)}; "
            "write for example --local_average=weights,statistics."
        )
    return True


def define(fv: flags.FlagValues) -> None:
    """Defines the flags.

    Args:
        fv: the flag values in which they are defined.
    """
    flags.DEFINE_integer(
        "local_steps",
        None,
        "Number of steps that each replica trains on its own before the replicas combine their weights; if left out, "
        "gradients are summed in every step.",
        1,
        flag_values=fv,
    )
    flags.DEFINE_enum(
        "outer",
        "average",
        _RULES,
        f"How replicas combine their weights after --local_steps. The rate of elastic is {_ELASTIC} divided by the "
        "number of replicas.",
        flag_values=fv,
    )
    flags.DEFINE_integer(
        "local_start_step", 0, "Number of synchronous steps before the local steps begin.", 0, flag_values=fv
    )
    flags.DEFINE_list(
        "local_average",
        list(_PARTS),
        "What replicas combine after --local_steps. --compression compresses the weights alone: leave slots out to "
        "send less.",
        flag_values=fv,
    )
    flags.register_validator("local_average", _are_parts, flag_values=fv)
