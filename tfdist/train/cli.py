"""Command line of `tfdist train`: checks the flags before TensorFlow is imported, so that errors appear at once."""

from __future__ import annotations

import importlib.util
import os
import sys
import time

from absl import flags

from tfdist._optimizer_names import TAKERS, alternatives
from tfdist.cluster.launched import launched
from tfdist.flags import GROUPS, define_flags
from tfdist.flags.program import steps_of_profile
from tfdist.train import before_training


def main(argv: list[str]) -> int:
    """Runs `tfdist train` and returns its exit code.

    Args:
        argv: the arguments after `tfdist train`; `--flagfile=FILE` reads further flags from a file.

    Example:
        >>> from tfdist.train import main
        >>> main(["--epochs=0"])  # after a line on stderr that says why
        2

    Raises:
        SystemExit: with code 75 if the training was interrupted by SIGTERM and goes on when it is started again.
    """
    started = time.time()
    values = flags.FlagValues()
    define_flags(flag_values=values)
    if any(argument in ("-h", "--help", "-help", "--helpfull") for argument in argv):
        print(usage())
        return 0
    try:
        rest = values(["tfdist train", *argv])[1:]
    except flags.Error as error:
        print(f"tfdist train: {error}; `tfdist train --help` lists the flags.", file=sys.stderr)
        return 2
    if rest:
        print(f"tfdist train: expected flags only, received {' '.join(rest)}; write --flag=value.", file=sys.stderr)
        return 2
    try:
        check_flags(values)
    except ValueError as error:
        print(f"tfdist train: {error}", file=sys.stderr)
        return 2
    if launched() is None:
        # The launcher keeps TensorFlow's log lines in its log files. Without a launcher there is no such file: errors
        # are shown, and information and warnings are not, unless the user has set the variable.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    before_training.leave_on_sigterm()
    try:
        from tfdist.train.program import run

        return run(values, started=started)
    except ValueError as error:
        # The errors that tfdist raises for wrong options need no traceback; all other errors keep theirs.
        if not str(error).startswith("expected "):
            raise
        print(f"tfdist train: {error}", file=sys.stderr)
        return 2
    finally:
        before_training.end()


def check_flags(values: flags.FlagValues) -> None:
    """Raises ValueError for flags that contradict each other.

    Args:
        values: parsed flags of all groups.

    Example:
        >>> from absl import flags
        >>> from tfdist.flags import define_flags
        >>> from tfdist.train.cli import check_flags
        >>> values = flags.FlagValues()
        >>> define_flags(flag_values=values)
        >>> _ = values(["train", "--optimizer=adam", "--eeta=0.02"])
        >>> check_flags(values)
        Traceback (most recent call last):
        ...
        ValueError: expected no --eeta with --optimizer=adam, received 0.02; leave it out, or use lars.
    """
    needed = {
        "tfrecord": ("train_files", "eval_files", "image_shape", "num_classes"),
        "synthetic": ("image_shape", "num_classes"),
    }
    takes = needed.get(values.data, ())
    for name in ("train_files", "eval_files", "image_shape", "num_classes"):
        given = bool(values[name].value)
        if given and name not in takes:
            raise ValueError(
                f"expected no --{name} with --data={values.data}, received {values[name].value}; leave it out."
            )
        if not given and name in takes:
            raise ValueError(f"expected --{name} with --data={values.data}, received none; add it.")
    for name, takers in TAKERS.items():
        if values[name].present and values.optimizer not in takers:
            raise ValueError(
                f"expected no --{name} with --optimizer={values.optimizer}, received {values[name].value}; "
                f"leave it out, or use {alternatives(takers)}."
            )
    _check_length_and_snapshots(values)
    if values.steps is None and values.warmup_epochs > values.epochs:
        raise ValueError(f"expected --warmup_epochs up to --epochs={values.epochs}, received {values.warmup_epochs}.")
    if values.momentum == 1:
        raise ValueError("expected --momentum below 1, received 1.0.")
    if values.optimizer == "tfa_lamb" and importlib.util.find_spec("tensorflow_addons") is None:
        raise ValueError(
            "expected TensorFlow Addons for --optimizer=tfa_lamb, found none; pip install '.[addons]' in a "
            "checkout of tfdist, or use lamb."
        )
    if values["base_batch_size"].present and values.learning_rate_scaling == "none":
        raise ValueError(
            f"expected no --base_batch_size with --learning_rate_scaling=none, received {values.base_batch_size}; "
            "add --learning_rate_scaling=auto, or leave --base_batch_size out."
        )
    if values.data_dir and values.data == "tfrecord":
        raise ValueError(
            f"expected no --data_dir with --data=tfrecord, received {values.data_dir}; "
            "write the folder into --train_files and --eval_files."
        )
    if values.image_shape and not (
        len(values.image_shape) == 3 and all(size.isdecimal() and int(size) for size in values.image_shape)
    ):
        raise ValueError(
            f"expected --image_shape as height,width,channels, received {','.join(values.image_shape)}; "
            "write it as 28,28,1."
        )


def _check_length_and_snapshots(values: flags.FlagValues) -> None:
    if values["epochs"].present and values["steps"].present:
        raise ValueError(f"expected --epochs or --steps, received {values.epochs} and {values.steps}; leave one out.")
    steps_of_profile(values.profile_steps)
    if values.snapshot_every_seconds is not None and not values.snapshot_every_seconds > 0:
        raise ValueError(f"expected --snapshot_every_seconds above 0, received {values.snapshot_every_seconds}.")
    if values["stall_deadline_seconds"].present and not values.stall_seconds:
        raise ValueError(
            f"expected no --stall_deadline_seconds with --stall_seconds=0, received {values.stall_deadline_seconds}; "
            "leave it out."
        )
    if values.snapshot_every_steps is not None and values.snapshot_every_seconds is not None:
        raise ValueError(
            "expected --snapshot_every_steps or --snapshot_every_seconds, received "
            f"{values.snapshot_every_steps} and {values.snapshot_every_seconds}; leave one out."
        )


def usage() -> str:
    """Returns the help text, which lists the flags by group.

    Example:
        >>> from tfdist.train.cli import usage
        >>> usage().splitlines()[0]
        'usage: tfdist train [--flag=value ...] [--flagfile=FILE]'
    """
    lines = ["usage: tfdist train [--flag=value ...] [--flagfile=FILE]", ""]
    for group in GROUPS:
        values = flags.FlagValues()
        define_flags(groups=(group,), flag_values=values)
        lines.append(f"{group} flags:")
        for name in sorted(values):
            flag = values[name]
            default = "" if flag.default in (None, []) else f" (default: {flag.default})"
            lines.append(f"  --{name}: {flag.help}{default}")
        lines.append("")
    return "\n".join(lines).rstrip()
