"""The flags of `tfdist train` alone: model, data, length, snapshots, validation and the evaluator."""

from __future__ import annotations

import re

from absl import flags


def steps_of_profile(text: str | None) -> tuple[int, int] | None:
    """Returns the first and the last step that `--profile_steps` names.

    Args:
        text: value of the flag, such as "10:20"; None without the flag.

    Raises:
        ValueError: if the text has another form.

    Example:
        >>> from tfdist.flags.program import steps_of_profile
        >>> steps_of_profile("10:20")
        (10, 20)
    """
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]+):([0-9]+)", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= first <= last:
        raise ValueError(
            f"expected --profile_steps as the first and the last step, such as 10:20, received {text}; "
            "count the steps from 1."
        )
    return first, last


def define(fv: flags.FlagValues) -> None:
    """Defines the flags of the group "program".

    Args:
        fv: the flag values in which they are defined.
    """
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
        "Seconds that the evaluator waits for a new snapshot.",
        lower_bound=0,
        flag_values=fv,
    )
    flags.DEFINE_integer(
        "steps",
        None,
        "Number of steps of the training, instead of --epochs; the last epoch may be shorter.",
        lower_bound=1,
        flag_values=fv,
    )
    flags.DEFINE_integer(
        "validation_every",
        None,
        "Number of epochs after each of which fit evaluates the held-out data; it does not if left out.",
        lower_bound=1,
        flag_values=fv,
    )
    flags.DEFINE_string(
        "profile_steps", None, "First and last step to profile for TensorBoard, as in 10:20.", flag_values=fv
    )
    flags.DEFINE_enum(
        "resume",
        "auto",
        ("auto", "never", "require"),
        "What to do with snapshots in --model_dir: auto goes on from the newest one if there is any; never begins a "
        "new training, and ends with an error if there is one; require ends with an error if there is none.",
        flag_values=fv,
    )
    flags.DEFINE_integer(
        "snapshot_every_steps",
        None,
        "Steps between two snapshots; if left out, snapshots take at most 2% of the time.",
        lower_bound=1,
        flag_values=fv,
    )
    flags.DEFINE_float(
        "snapshot_every_seconds", None, "Seconds between two snapshots, instead of steps.", flag_values=fv
    )
    flags.DEFINE_float(
        "stall_seconds",
        60.0,
        "Seconds that a step may always take before the training counts as stalled; 0 for no watch.",
        lower_bound=0,
        flag_values=fv,
    )
    flags.DEFINE_float(
        "stall_deadline_seconds",
        300.0,
        "Seconds after which a stalled training ends with exit code 75.",
        lower_bound=1,
        flag_values=fv,
    )
    flags.DEFINE_enum(
        "best_metric",
        "loss",
        ("loss", "accuracy"),
        "Metric of the held-out data by which the evaluator chooses the best model.",
        flag_values=fv,
    )
    flags.DEFINE_integer(
        "stop_patience",
        None,
        "Number of evaluations in a row without a better --best_metric after which the evaluator ends the training.",
        lower_bound=1,
        flag_values=fv,
    )
