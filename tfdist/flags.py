"""The command-line flags of `tfdist train`, which other absl programs can use as well.

Example:
    >>> from absl import flags
    >>> from tfdist.flags import define_flags, strategy_from_flags
    >>> values = flags.FlagValues()
    >>> define_flags(groups=("strategy",), flag_values=values)
    >>> _ = values(["program", "--strategy=one_device"])
    >>> strategy_from_flags(values).num_replicas_in_sync
    1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from tfdist._optimizer_names import DECAYS, OPTIMIZERS, SCALINGS
from tfdist._strategy_names import STRATEGY_NAMES
from tfdist.allreduce import AllReduceOptions
from tfdist.allreduce.compression import compression_from_name
from tfdist.allreduce.options import ALGORITHMS

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["GROUPS", "all_reduce_from_flags", "define_flags", "optimizer_from_flags", "strategy_from_flags"]

GROUPS = ("strategy", "training", "program")


def define_flags(*, groups: Sequence[str] = GROUPS, flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the absl flags of tfdist.

    Args:
        groups: any of "strategy" (strategy, devices, all-reduce, TPU), "training" (batch size, epochs, optimizer,
            precision, model folder) and "program" (model and data of `tfdist train`).
        flag_values: the flag values in which the flags are defined.

    Raises:
        ValueError: for an unknown group.

    Example:
        >>> from absl import flags
        >>> from tfdist.flags import define_flags
        >>> values = flags.FlagValues()
        >>> define_flags(groups=("strategy", "training"), flag_values=values)
        >>> _ = values(["program", "--epochs=3"])
        >>> values.strategy, values.epochs
        ('auto', 3)
    """
    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        raise ValueError(f"expected groups out of {', '.join(GROUPS)}, received {', '.join(unknown)}.")
    if "strategy" in groups:
        _define_strategy_flags(flag_values)
    if "training" in groups:
        _define_training_flags(flag_values)
    if "program" in groups:
        _define_program_flags(flag_values)


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
        "compression": None if flag_values.compression == "none" else flag_values.compression,
    }
    options = AllReduceOptions(**{name: value for name, value in given.items() if value is not None})
    return None if options == AllReduceOptions() else options


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
        startup_timeout_seconds=flag_values.startup_timeout_seconds,
    )


def optimizer_from_flags(optimizer: Any, flag_values: flags.FlagValues = flags.FLAGS) -> Any:
    """Returns an optimizer that exchanges gradients as the flags say; see tfdist.optimizers.DistributedOptimizer.

    Args:
        optimizer: any optimizer of the Keras in use, made in the scope of `strategy_from_flags()`.
        flag_values: parsed flags of the group "strategy".

    Raises:
        ValueError: at the first step, if DistributedOptimizer does not support the strategy.

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


def _define_strategy_flags(fv: flags.FlagValues) -> None:
    flags.DEFINE_enum("strategy", "auto", STRATEGY_NAMES, "Strategy that distributes the training.", flag_values=fv)
    flags.DEFINE_list(
        "devices", [], "Local devices: a number, or names such as CPU:0,CPU:1; empty for all GPUs.", flag_values=fv
    )
    flags.DEFINE_enum("all_reduce", "auto", ALGORITHMS, "Algorithm that sums the gradients.", flag_values=fv)
    flags.DEFINE_integer("num_packs", None, "Number of packs, within one process.", lower_bound=1, flag_values=fv)
    flags.DEFINE_integer(
        "bytes_per_pack", None, "Bytes of a pack of gradients, across workers.", lower_bound=1, flag_values=fv
    )
    flags.DEFINE_float(
        "all_reduce_timeout_seconds", None, "Seconds to wait for other workers; 1800 if left out.", 0, flag_values=fv
    )
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
    flags.DEFINE_string("tpu", None, "Name or grpc:// address of a TPU, or 'local'.", flag_values=fv)
    flags.DEFINE_float(
        "startup_timeout_seconds",
        None,
        "Seconds to wait for other tasks at the start; 300 if left out.",
        0,
        flag_values=fv,
    )


def _define_training_flags(fv: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "global_batch_size", 64, "Number of records in a step, over all replicas.", lower_bound=1, flag_values=fv
    )
    flags.DEFINE_integer("epochs", 20, "Number of passes over the training data.", lower_bound=1, flag_values=fv)
    flags.DEFINE_enum("optimizer", "adam", OPTIMIZERS, "Optimizer.", flag_values=fv)
    flags.DEFINE_float(
        "learning_rate",
        1e-3,
        "Learning rate; with --learning_rate_scaling the rate that suits --base_batch_size.",
        lower_bound=0,
        flag_values=fv,
    )
    flags.DEFINE_float(
        "momentum",
        None,
        "Momentum of sgd, momentum_corrected_sgd and lars; if left out 0 for sgd, 0.9 for the other two.",
        lower_bound=0,
        upper_bound=1,
        flag_values=fv,
    )
    flags.DEFINE_enum(
        "learning_rate_scaling",
        "none",
        SCALINGS,
        "How the learning rate changes with --global_batch_size; auto is linear for sgd, momentum_corrected_sgd and "
        "lars, sqrt for the others.",
        flag_values=fv,
    )
    flags.DEFINE_integer(
        "base_batch_size",
        256,
        "Batch size that --learning_rate suits; used with --learning_rate_scaling.",
        lower_bound=1,
        flag_values=fv,
    )
    flags.DEFINE_float(
        "warmup_epochs", 0.0, "Epochs in which the learning rate grows linearly.", lower_bound=0, flag_values=fv
    )
    flags.DEFINE_enum(
        "learning_rate_decay", "none", DECAYS, "How the learning rate falls to 0 over all epochs.", flag_values=fv
    )
    flags.DEFINE_float(
        "weight_decay",
        None,
        "Weight decay of sgd, momentum_corrected_sgd, adamw, lars, lamb and tfa_lamb; if left out 0.004 for adamw, 0 "
        "for the others.",
        lower_bound=0,
        flag_values=fv,
    )
    flags.DEFINE_list(
        "exclude_from_weight_decay",
        [],
        "Regular expressions for the paths of variables; a variable that matches has no weight decay "
        "(momentum_corrected_sgd, lars, lamb, tfa_lamb) and no trust ratio (lars, lamb, tfa_lamb).",
        flag_values=fv,
    )
    flags.DEFINE_list(
        "exclude_from_adaptation",
        None,
        "Regular expressions for the paths of variables without trust ratio (lars, lamb); if left out, those of "
        "--exclude_from_weight_decay; if empty, no variable is excluded.",
        flag_values=fv,
    )
    flags.DEFINE_float("eeta", None, "Trust coefficient of lars; 0.001 if left out.", lower_bound=0, flag_values=fv)
    flags.DEFINE_enum(
        "precision", "float32", ("float32", "mixed_bfloat16", "mixed_float16"), "Precision policy.", flag_values=fv
    )
    flags.DEFINE_boolean(
        "sync_batch_norm", False, "Whether batch normalization uses the statistics of the global batch.", flag_values=fv
    )
    flags.DEFINE_integer("seed", 0, "Seed of the weights and of the order of the data.", flag_values=fv)
    flags.DEFINE_string("model_dir", "tfdist-model", "Folder for logs, checkpoint and model.", flag_values=fv)


def _define_program_flags(fv: flags.FlagValues) -> None:
    flags.DEFINE_string("model", "cnn", "Model: cnn, mlp, resnet50, or package.module:function.", flag_values=fv)
    flags.DEFINE_enum(
        "data", "digits", ("digits", "fashion_mnist", "tfrecord", "synthetic"), "Training data.", flag_values=fv
    )
    flags.DEFINE_string("data_dir", None, "Folder for the data files; ~/.cache/tfdist if left out.", flag_values=fv)
    flags.DEFINE_string("train_files", None, "Pattern of the training files, with --data=tfrecord.", flag_values=fv)
    flags.DEFINE_string("eval_files", None, "Pattern of the held-out files, with --data=tfrecord.", flag_values=fv)
    flags.DEFINE_list("image_shape", [], "height,width,channels, with --data=tfrecord or synthetic.", flag_values=fv)
    flags.DEFINE_integer(
        "num_classes", None, "Number of labels, with --data=tfrecord or synthetic.", lower_bound=2, flag_values=fv
    )
    flags.DEFINE_integer(
        "steps_per_epoch", None, "Steps of an epoch; all full batches if left out.", lower_bound=1, flag_values=fv
    )
    flags.DEFINE_boolean(
        "stop_on_nonfinite_loss", True, "Whether a loss that is not finite ends the training.", flag_values=fv
    )
    flags.DEFINE_float(
        "evaluator_timeout_seconds",
        600.0,
        "Seconds that the evaluator waits for a new checkpoint.",
        lower_bound=0,
        flag_values=fv,
    )
