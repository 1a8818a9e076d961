"""The program of `tfdist train`: strategy, data, model, training, evaluation, files, summary."""

from __future__ import annotations

import os
import sys
from typing import Any

from absl import flags

from tfdist._log import get_logger
from tfdist.cluster import ClusterConfig
from tfdist.cluster.launched import launched
from tfdist.flags import optimizer_from_flags, strategy_from_flags
from tfdist.flags.program import steps_of_profile
from tfdist.train import before_training
from tfdist.train.length import Length, check_whole_epochs, length_of
from tfdist.train.summary import Summary, weights_checksum

_FILES = {"model": "model.keras", "checkpoint": "checkpoint.keras", "logs": "logs"}
# The usual grace period of schedulers is 30 s.
_PREEMPTION_SECONDS = 25.0


def run(values: flags.FlagValues, *, started: float) -> int:
    """Trains as the flags say, prints a summary and returns the exit code.

    Args:
        values: parsed flags of all groups, see tfdist.flags.define_flags.
        started: time.time() at the start of the program.
    """
    cluster = ClusterConfig.detect()
    # Parameter servers serve until the coordinator has written its snapshot.
    if cluster.has_parameter_servers or cluster.is_evaluator:
        before_training.end()
    else:
        _leave_on_signals()
    # The strategy comes before everything else of TensorFlow, because it must be built before any tensor is made.
    strategy = strategy_from_flags(values)
    from tfdist.input import distribute_files
    from tfdist.keras_compat.version import keras
    from tfdist.saving import save_model
    from tfdist.train.callbacks import StepTimer, TrainingNotFiniteError
    from tfdist.train.progress import ProgressLines, verbosity
    from tfdist.workers import is_chief

    chief = is_chief(strategy)
    keras().utils.set_random_seed(values.seed)
    keras().mixed_precision.set_global_policy(values.precision)
    data = _load_data(values)
    steps = values.steps_per_epoch or data.num_train // values.global_batch_size
    if not steps:
        raise ValueError(
            f"expected at least one global batch of {values.global_batch_size} in the training data, received "
            f"{data.num_train} records; lower --global_batch_size."
        )
    length = length_of(steps_per_epoch=steps, epochs=values.epochs, steps=values.steps)
    if cluster.has_parameter_servers:
        check_whole_epochs(length)
    model = _compiled_model(values, strategy, data, steps)
    if cluster.is_evaluator:
        return _evaluate(model, strategy, data, values, length)

    timer = StepTimer()
    callbacks = [timer, *_callbacks(values, strategy, model, length)]
    start = launched()
    verbose = verbosity(chief=chief, is_terminal=sys.stdout.isatty(), is_live=start is not None and start.is_live)
    if verbose == 2:
        callbacks.append(ProgressLines(steps=length.steps, steps_per_epoch=steps))
    training = distribute_files(
        strategy,
        data.train_files,
        parse_fn=data.parse,
        global_batch_size=values.global_batch_size,
        seed=values.seed,
    )
    evaluation = distribute_files(
        strategy,
        data.eval_files,
        parse_fn=data.parse,
        global_batch_size=values.global_batch_size,
        training=False,
    )
    validation = {
        "validation_data": evaluation,
        "validation_steps": evaluation.steps_per_epoch,
        "validation_freq": values.validation_every,
    }
    try:
        model.fit(
            training,
            epochs=length.epochs,
            steps_per_epoch=steps,
            callbacks=callbacks,
            verbose=verbose,
            shuffle=False,
            **(validation if values.validation_every else {}),
        )
    except TrainingNotFiniteError as error:
        print(f"tfdist train: {error}", file=sys.stderr)
        return 1
    logs = model.evaluate(evaluation, steps=evaluation.steps_per_epoch, verbose=0, return_dict=True)
    files = {name: os.path.join(values.model_dir, file) for name, file in _FILES.items()}
    save_model(model, files["model"])
    weights = model.get_weights()
    if chief:
        _write_confusion_matrix(weights, data, values, files["logs"], step=int(model.optimizer.iterations.numpy()))
    summary = Summary(
        strategy=_strategy_name(strategy),
        num_workers=cluster.num_workers,
        num_replicas=strategy.num_replicas_in_sync,
        steps=int(model.optimizer.iterations.numpy()),
        samples_per_second=timer.steps_per_second * values.global_batch_size,
        accuracy=logs["accuracy"],
        loss=logs["loss"],
        weights=weights_checksum(model),
        files=files,
        gradients=_gradients_sent(model.optimizer, values),
    )
    if cluster.jobs and not cluster.has_parameter_servers:
        print(f"{cluster.task_name}: {summary.line()}", flush=True)
    if chief:
        summary.print()
    return 0


def _write_confusion_matrix(weights: list[Any], data: Any, values: flags.FlagValues, logs: str, *, step: int) -> None:
    """Predicts held-out images on the chief alone, with a model outside of the strategy that has these weights."""
    import tensorflow as tf

    from tfdist.input.find import compression_of, find_files
    from tfdist.train.confusion import confusion_matrix, write_confusion_matrix
    from tfdist.train.models import build_model

    model = build_model(values.model, image_shape=data.image_shape, num_classes=data.num_classes)
    if not model.built:
        model(tf.zeros([1, *data.image_shape]))
    model.set_weights(weights)
    found = find_files(data.eval_files)
    records = tf.data.TFRecordDataset([file.name for file in found], compression_of(found))
    images = records.map(data.parse).batch(64)
    matrix = confusion_matrix(model, images, num_classes=data.num_classes)
    write_confusion_matrix(matrix, os.path.join(logs, "evaluation"), step=step)


def _leave_on_signals() -> None:
    """Ends the program with code 75 on SIGTERM, while no training is under way; AutoResume does so in a training."""
    from tfdist.checkpoint.preemption import Preemption

    before_training.end()
    Preemption(("SIGTERM",), seconds=_PREEMPTION_SECONDS)


def _compiled_model(values: flags.FlagValues, strategy: Any, data: Any, steps: int) -> Any:
    from tfdist.keras_compat.version import keras
    from tfdist.train.models import build_model

    with strategy.scope():
        model = build_model(
            values.model,
            image_shape=data.image_shape,
            num_classes=data.num_classes,
            sync_batch_norm=values.sync_batch_norm,
        )
        model.compile(
            optimizer=optimizer_from_flags(_optimizer(values, steps), values),
            loss=keras().losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        if model.built and hasattr(model.optimizer, "build"):
            # `build` checks the options of the optimizer against the variables, before any data are read. A model
            # without an Input layer makes its variables from the first data.
            model.optimizer.build(model.trainable_variables)
    return model


def _callbacks(values: flags.FlagValues, strategy: Any, model: Any, length: Length) -> list[Any]:
    """Returns the callbacks of the training, without the timer."""
    from tfdist.keras_compat.version import keras
    from tfdist.train.board import TrainingBoard
    from tfdist.train.callbacks import ChiefCheckpoint, StopIfNotFinite
    from tfdist.train.learning_rate import KeepLearningRate, learning_rate_of
    from tfdist.train.profile import ProfileSteps
    from tfdist.train.resuming import auto_resume
    from tfdist.train.stopping import StopAfterSteps, StopWhenAsked
    from tfdist.watch import StallWatch
    from tfdist.workers import is_chief

    guard = StopIfNotFinite() if values.stop_on_nonfinite_loss else None
    logs = os.path.join(values.model_dir, _FILES["logs"])
    # StopIfNotFinite comes before ChiefCheckpoint, so that broken weights do not replace a checkpoint.
    callbacks: list[Any] = [guard] if guard is not None else []
    callbacks.append(ChiefCheckpoint(os.path.join(values.model_dir, _FILES["checkpoint"])))
    if is_chief(strategy):
        callbacks.append(keras().callbacks.TensorBoard(logs, write_graph=False))
    profiled = steps_of_profile(values.profile_steps)
    if is_chief(strategy) and profiled is not None:
        first, last = profiled
        callbacks.append(ProfileSteps(first, last, steps_per_epoch=length.steps_per_epoch, directory=logs))
    if length.ends_within_an_epoch:
        callbacks.append(StopAfterSteps(length.steps, steps_per_epoch=length.steps_per_epoch))
    if values.learning_rate_decay == "none" and not values.warmup_epochs:
        callbacks.append(KeepLearningRate(learning_rate_of(model.optimizer)))
    resume, run = auto_resume(values, strategy=strategy, length=length, guard=guard)
    watch = None
    if values.stall_seconds:
        watch = StallWatch(floor_seconds=values.stall_seconds, deadline_seconds=values.stall_deadline_seconds)
        callbacks.append(watch)
    callbacks.append(TrainingBoard(logs, watch=watch, is_compressed=values.compression != "none"))
    if values.stop_patience is not None:
        if is_chief(strategy):
            get_logger().info(
                "--stop_patience=%d: the evaluator ends the training; without one, as `tfdist launch --evaluator` "
                "starts, the training goes on to its end",
                values.stop_patience,
            )
        callbacks.append(StopWhenAsked(values.model_dir, run=run))
    callbacks.append(resume)
    return callbacks


def _evaluate(model: Any, strategy: Any, data: Any, values: flags.FlagValues, length: Length) -> int:
    from tfdist.checkpoint.following import SnapshotFollower
    from tfdist.train import evaluations
    from tfdist.train.evaluator import Evaluator
    from tfdist.train.resuming import snapshots_in

    made = evaluations.Evaluations(os.path.join(values.model_dir, evaluations.FILE))
    follower = SnapshotFollower(snapshots_in(values.model_dir), seen=made.seen)
    return Evaluator(model, strategy, data, values, evaluations=made, epochs=length.epochs).run(follower)


def _gradients_sent(optimizer: Any, values: flags.FlagValues) -> str:
    """Returns a phrase with the bytes that a replica sent, or an empty string without compression."""
    if values.compression == "none":
        return ""
    from tfdist.optimizers import gradient_traffic

    found = gradient_traffic(optimizer)
    a_step = found.sent / max(found.steps, 1)
    return f"{values.compression}, {a_step:,.0f} bytes a step and replica, {found.ratio:.1f} times fewer"


def _strategy_name(strategy: Any) -> str:
    name = type(strategy).__name__
    # CollectiveAllReduceStrategy is TensorFlow's internal name of tf.distribute.MultiWorkerMirroredStrategy.
    return "MultiWorkerMirroredStrategy" if name == "CollectiveAllReduceStrategy" else name


def _load_data(values: flags.FlagValues) -> Any:
    from tfdist.train import data

    shape: Any = tuple(map(int, values.image_shape))
    if values.data == "digits":
        return data.digits(values.data_dir)
    if values.data == "fashion_mnist":
        return data.fashion_mnist(values.data_dir)
    if values.data == "synthetic":
        return data.synthetic(values.data_dir, image_shape=shape, num_classes=values.num_classes)
    return data.tfrecord(
        train_files=values.train_files,
        eval_files=values.eval_files,
        image_shape=shape,
        num_classes=values.num_classes,
    )


def _optimizer(values: flags.FlagValues, steps: int) -> Any:
    from tfdist.optimizers import create_optimizer

    # A step of the optimizer uses the batches of all its passes.
    passes = values.backward_passes_per_step
    scaled = values.learning_rate_scaling != "none"
    return create_optimizer(
        values.optimizer,
        learning_rate=values.learning_rate,
        learning_rate_scaling=values.learning_rate_scaling,
        global_batch_size=passes * values.global_batch_size,
        base_batch_size=values.base_batch_size if scaled else None,
        warmup_epochs=values.warmup_epochs,
        learning_rate_decay=values.learning_rate_decay,
        # A step may use batches of two epochs, so that this number may be a fraction.
        steps_per_epoch=steps / passes,
        epochs=values.epochs if values.steps is None else values.steps / steps,
        momentum=values.momentum,
        weight_decay=values.weight_decay,
        exclude_from_weight_decay=values.exclude_from_weight_decay,
        **{name: values[name].value for name in ("eeta", "exclude_from_adaptation") if values[name].present},
    )
