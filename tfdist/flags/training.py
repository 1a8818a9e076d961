"""The flags of a training: batch size, length, optimizer, precision, and the folder of the model."""

from __future__ import annotations

from absl import flags

from tfdist._optimizer_names import DECAYS, OPTIMIZERS, SCALINGS


def define(fv: flags.FlagValues) -> None:
    """Defines the flags of the group "training".

    Args:
        fv: the flag values in which they are defined.
    """
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
    flags.DEFINE_integer(
        "seed",
        0,
        "Seed of the weights and of the order of the data.",
        lower_bound=0,
        upper_bound=2**32 - 1,
        flag_values=fv,
    )
    flags.DEFINE_string("model_dir", "tfdist-model", "Folder for logs, checkpoint and model.", flag_values=fv)
