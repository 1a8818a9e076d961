"""The flags that describe a strategy, and what they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags

from tfdist._strategy_names import STRATEGY_NAMES
from tfdist.allreduce import AllReduceOptions
from tfdist.allreduce.compression import compression_from_name
from tfdist.allreduce.options import ALGORITHMS, TRANSPORTS
from tfdist.averaging.staleness import INVERSE, Staleness
from tfdist.flags import local_steps

if TYPE_CHECKING:
    import tensorflow as tf


def all_reduce_from_flags(flag_values: flags.FlagValues = flags.FLAGS) -> AllReduceOptions | None:
    """Returns the all-reduce options that the flags set, or None if every flag has its default.

    Args:
        flag_values: parsed flags of the group "strategy".

    Example:
        >>> from absl import flags
        >>> from tfdist.flags import all_reduce_from_flags, define_flags
        >>> values = flags.FlagValues()
        >>> define_flags(groups=("strategy",), flag_values=values)
        >>> _ = values(["program", "--all_reduce=ring"])
        >>> all_reduce_from_flags(values).algorithm
        'ring'
    """
    given: dict[str, Any] = {
        "algorithm": flag_values.all_reduce,
        "num_packs": flag_values.num_packs,
        "bytes_per_pack": flag_values.bytes_per_pack,
        "timeout_seconds": flag_values.all_reduce_timeout_seconds,
        "transport": flag_values.all_reduce_transport,
        "compression": None if flag_values.compression == "none" else flag_values.compression,
    }
    options = AllReduceOptions(**{name: value for name, value in given.items() if value is not None})
    return None if options == AllReduceOptions() else options


def staleness_from_flags(flag_values: flags.FlagValues = flags.FLAGS) -> Staleness | None:
    """Returns what parameter servers do with gradients of old weights, or None if no flag asks for it.

    Args:
        flag_values: parsed flags of the group "strategy".

    Example:
        >>> from absl import flags
        >>> from tfdist.flags import define_flags, staleness_from_flags
        >>> values = flags.FlagValues()
        >>> define_flags(groups=("strategy",), flag_values=values)
        >>> _ = values(["program", "--staleness_drop_above=4"])
        >>> staleness_from_flags(values)
        Staleness(scale='1/tau', drop_above=4, bound=None, soft_sync=None)
    """
    given = {name: flag_values[f"staleness_{name}"].value for name in ("scale", "drop_above", "bound", "soft_sync")}
    if all(value is None for value in given.values()):
        return None
    scale = given.pop("scale") or INVERSE
    return Staleness(scale=None if scale == "none" else scale, **given)


def strategy_from_flags(flag_values: flags.FlagValues = flags.FLAGS) -> tf.distribute.Strategy:
    """Returns the strategy that the flags describe; see tfdist.create_strategy.

    Args:
        flag_values: parsed flags of the group "strategy".

    Raises:
        ValueError: for an option that the strategy cannot honour.

    Example:
        >>> from absl import flags
        >>> from tfdist.flags import define_flags, strategy_from_flags
        >>> values = flags.FlagValues()
        >>> define_flags(groups=("strategy",), flag_values=values)
        >>> _ = values(["program", "--strategy=mirrored", "--devices=2"])
        >>> strategy_from_flags(values).num_replicas_in_sync
        2
    """
    from tfdist.strategies import create_strategy

    names = flag_values.devices
    devices = int(names[0]) if len(names) == 1 and names[0].isdecimal() else names or None
    return create_strategy(
        flag_values.strategy,
        devices=devices,
        all_reduce=all_reduce_from_flags(flag_values),
        tpu=flag_values.tpu,
        staleness=staleness_from_flags(flag_values),
        startup_timeout_seconds=flag_values.startup_timeout_seconds,
    )


def optimizer_from_flags(optimizer: Any, flag_values: flags.FlagValues = flags.FLAGS) -> Any:
    """Returns an optimizer that exchanges gradients, or weights, as the flags say.

    See tfdist.optimizers.DistributedOptimizer, and tfdist.averaging.LocalSGD for `--local_steps`.

    Args:
        optimizer: any optimizer of the Keras in use, made in the scope of `strategy_from_flags()`.
        flag_values: parsed flags of the group "strategy".

    Raises:
        ValueError: for flags that contradict each other, and at the first step, if the strategy is not supported.

    Example:
        >>> import tensorflow as tf
        >>> from absl import flags
        >>> from tfdist.flags import define_flags, optimizer_from_flags
        >>> values = flags.FlagValues()
        >>> define_flags(groups=("strategy",), flag_values=values)
        >>> _ = values(["program", "--backward_passes_per_step=2"])
        >>> type(optimizer_from_flags(tf.keras.optimizers.SGD(), values)).__name__
        'SGD'
    """
    import tensorflow as tf

    from tfdist.optimizers import DistributedOptimizer

    all_reduce, passes = all_reduce_from_flags(flag_values), flag_values.backward_passes_per_step
    if local_steps.is_asked(flag_values):
        return local_steps.local_sgd_from_flags(optimizer, flag_values)
    across_workers = isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy)
    # Across workers DistributedOptimizer is used even if no flag asks for it: TensorFlow's own sum is slower.
    if not across_workers and passes == 1 and (all_reduce is None or all_reduce.compressor is None):
        return optimizer
    return DistributedOptimizer(optimizer, backward_passes_per_step=passes)


def _is_compression(text: str) -> bool:
    try:
        compression_from_name(text)
    except ValueError as error:
        raise flags.ValidationError(str(error)) from None
    return True


def define(fv: flags.FlagValues) -> None:
    """Defines the flags of the group "strategy".

    Args:
        fv: the flag values in which they are defined.
    """
    flags.DEFINE_enum("strategy", "auto", STRATEGY_NAMES, "Strategy that distributes the training.", flag_values=fv)
    flags.DEFINE_list(
        "devices", [], "Local devices: a number, or names such as CPU:0,CPU:1; empty for all GPUs.", flag_values=fv
    )
    flags.DEFINE_enum("all_reduce", "auto", ALGORITHMS, "Algorithm of TensorFlow that sums gradients.", flag_values=fv)
    flags.DEFINE_integer("num_packs", None, "Number of packs, within one process.", lower_bound=1, flag_values=fv)
    flags.DEFINE_integer(
        "bytes_per_pack", None, "Bytes of a pack of gradients, across workers.", lower_bound=1, flag_values=fv
    )
    flags.DEFINE_float(
        "all_reduce_timeout_seconds", None, "Seconds to wait for other workers; 1800 if left out.", 0, flag_values=fv
    )
    flags.DEFINE_enum("all_reduce_transport", "auto", TRANSPORTS, "What carries sums between workers.", flag_values=fv)
    flags.DEFINE_string(
        "compression",
        "none",
        "Compression of the gradients: none, fp16, bf16, topk, threshold or powersgd; the last three take their "
        "density, tau or rank after a colon, as in topk:0.01.",
        flag_values=fv,
    )
    flags.register_validator("compression", _is_compression, flag_values=fv)
    flags.DEFINE_integer(
        "backward_passes_per_step",
        1,
        "Number of batches whose gradients are averaged for each step of the optimizer.",
        lower_bound=1,
        flag_values=fv,
    )
    local_steps.define(fv)
    flags.DEFINE_enum(
        "staleness_scale",
        None,
        (INVERSE, "none"),
        "Factor of the learning rate of a gradient, by its staleness tau, with parameter servers; if left out 1/tau if "
        "another flag of staleness is given.",
        flag_values=fv,
    )
    flags.DEFINE_integer(
        "staleness_drop_above", None, "Largest staleness of a gradient that is not dropped.", 0, flag_values=fv
    )
    flags.DEFINE_integer(
        "staleness_bound", None, "Steps that a worker may be ahead of the slowest one.", 0, flag_values=fv
    )
    flags.DEFINE_integer(
        "staleness_soft_sync", None, "Number of gradients of which the mean makes one update.", 1, flag_values=fv
    )
    flags.DEFINE_string("tpu", None, "Name or grpc:// address of a TPU, or 'local'.", flag_values=fv)
    flags.DEFINE_float(
        "startup_timeout_seconds",
        None,
        "Seconds to wait for other tasks at the start; 300 if left out.",
        0,
        flag_values=fv,
    )
