"""Callbacks: all workers make the same decisions, and only the chief writes a file, which is never incomplete."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pathlib
import threading
import time
import types

from tests.conformance.case import case


def _files(run):
    """Returns the names of all files after every rank has written."""
    run.barrier()
    return sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file())


@case("EarlyStopping")
def early_stopping(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit, keras, sgd

    stop = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0.02, patience=1, restore_best_weights=True)
    model = compiled(run, optimizer=sgd)
    result = fit(model, batches(), epochs=12, validation_data=batches(UNEVEN), callbacks=[stop])
    return {**result, "stopped": stop.stopped_epoch}


@case("ReduceLROnPlateau")
def reduce_lr_on_plateau(run):
    from tests.conformance.models import compiled, fit, keras, sgd

    reduce = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5, min_delta=10.0)
    model = compiled(run, optimizer=sgd)
    return {**fit(model, epochs=4, callbacks=[reduce]), "rate": float(model.optimizer.learning_rate.numpy())}


@case("LearningRateScheduler")
def learning_rate_scheduler(run):
    from tests.conformance.models import compiled, fit, keras

    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 * 0.5**epoch)
    return fit(compiled(run), epochs=3, callbacks=[schedule])


@case("which callbacks are called, and when")
def calls(run):
    from tests.conformance.models import compiled, fit, keras

    seen = []
    names = ("on_epoch_begin", "on_epoch_end", "on_train_batch_begin", "on_train_batch_end")
    recorder = keras.callbacks.LambdaCallback(
        **{name: lambda number, logs, name=name: seen.append([name, number]) for name in names}
    )
    return {**fit(compiled(run), callbacks=[recorder]), "calls": seen}


class _Reader(threading.Thread):
    """A thread that reads a file again and again as soon as it exists, and records the errors."""

    def __init__(self, path, read):
        super().__init__(daemon=True)
        self.path, self.read, self.failures, self.going = path, read, [], True

    def run(self):
        while self.going:
            if self.path.exists():
                try:
                    self.read(self.path)
                except FileNotFoundError:
                    pass
                except Exception as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
            time.sleep(0.002)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.going = False
        self.join()


def _read_zip(path):
    import zipfile

    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


@case("ModelCheckpoint: one file, never half of one")
def model_checkpoint(run):
    from tests.conformance.models import compiled, fit, keras, weights

    def make():
        inputs = keras.layers.Input((8,))
        # The layer is large, so that writing the file takes a while.
        hidden = keras.layers.Dense(50_000, activation="tanh")(inputs)
        return keras.Model(inputs, keras.layers.Dense(2)(hidden))

    path = run.folder / "best.keras"
    from tests.conformance.models import sgd

    model = compiled(run, make, optimizer=lambda: sgd(learning_rate=1e-5, momentum=0.0))
    checkpoint = keras.callbacks.ModelCheckpoint(str(path), monitor="loss", save_best_only=True)
    with _Reader(path, _read_zip) as reader:
        history = fit(model, epochs=4, callbacks=[checkpoint])["history"]
    files = _files(run)
    loaded = keras.models.load_model(str(path))
    differences = [abs(a - b).max() for a, b in zip(weights(loaded), weights(model), strict=True)]
    run.barrier()
    # A single process writes the file as Keras does, so another program may find it incomplete.
    failures = reader.failures[:1] if run.topology.ranks > 1 and not run.is_oracle else []
    return {
        "history": history,
        "files": files,
        "not readable": failures,
        "differences": [float(d) for d in differences],
    }


@case("BackupAndRestore", per=("strategy",))
def backup_and_restore(run):
    from tests.conformance.models import KERAS_3, compiled, fit, keras

    if not KERAS_3 and run.topology.strategy in ("one_device", "central_storage"):
        return "Keras 2 has no BackupAndRestore on this strategy, and says so"

    class Interrupted(Exception):
        pass

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise Interrupted

    def callback():
        return keras.callbacks.BackupAndRestore(str(run.folder / "backup"))

    model = compiled(run)
    with contextlib.suppress(Interrupted):
        model.fit(*_data(), epochs=4, verbose=0, callbacks=[callback(), Interrupt()])
    run.barrier()
    backed_up = bool([path for path in run.folder.rglob("*") if path.is_file()])
    run.barrier()
    result = fit(compiled(run), epochs=4, callbacks=[callback()])
    run.barrier()
    return {**result, "backed up": backed_up, "files": _files(run)}


@case("fit again after BackupAndRestore")
def fit_after_restore(run):
    from tests.conformance.models import KERAS_3, compiled, fit, keras

    if not KERAS_3:
        return "in Keras 2 BackupAndRestore deletes an attribute that a later fit reads, on one device too"

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyError("interrupted")

    def callback():
        return keras.callbacks.BackupAndRestore(str(run.folder / "backup"))

    with contextlib.suppress(KeyError):
        compiled(run).fit(*_data(), epochs=3, verbose=0, callbacks=[callback(), Interrupt()])
    run.barrier()
    model = compiled(run)
    restored = fit(model, epochs=3, callbacks=[callback()])
    if run.is_oracle:
        # Stock Keras has the defect on one device too. Without this line, the second fit would begin at epoch 2.
        model._initial_epoch = None
    return {"restored": restored, "again": fit(model, epochs=2)}


class _OrbaxStandIn:
    """The parts of orbax that OrbaxCheckpoint calls. orbax itself needs JAX, which slows down the import of Keras."""

    def __init__(self):
        self.training = types.SimpleNamespace(
            preservation_policies=types.SimpleNamespace(LatestN=lambda n: n),
            save_decision_policies=types.SimpleNamespace(FixedIntervalPolicy=lambda n: n),
            Checkpointer=_OrbaxCheckpointer,
        )

    def initialize(self):
        pass

    def Context(self):
        return contextlib.nullcontext()


class _OrbaxCheckpointer:
    def __init__(self, directory, **options):
        self._directory = pathlib.Path(directory)

    def save_checkpointables(self, step, payload):
        # Each writer has its own file name, so that no writer overwrites the file of another.
        path = self._directory / str(step) / f"{os.getpid()}-{id(self)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(payload["pytree"]["trainable_variables"], default=lambda array: array.tolist()))

    def close(self):
        pass


@case("OrbaxCheckpoint: the chief alone writes")
def orbax_checkpoint(run):
    from tests.conformance.models import KERAS_3, compiled, fit, keras

    if not KERAS_3:
        return "Keras 2 has no OrbaxCheckpoint"
    from keras.src.callbacks import orbax_checkpoint as module

    library, module.ocp = module.ocp, _OrbaxStandIn()
    try:
        callback = keras.callbacks.OrbaxCheckpoint(str(run.folder / "orbax"), save_on_background=False)
        result = fit(compiled(run), epochs=2, callbacks=[callback])
    finally:
        module.ocp = library
    run.barrier()
    written = {
        folder.name: [json.loads(path.read_text()) for path in folder.iterdir()]
        for folder in (run.folder / "orbax").iterdir()
    }
    run.barrier()
    return {**result, "written": written}


def _data():
    from tests.conformance.models import batches

    return (batches(),)


@case("CSVLogger")
def csv_logger(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit, keras

    path = run.folder / "log.csv"
    fit(compiled(run), batches(UNEVEN), epochs=3, callbacks=[keras.callbacks.CSVLogger(str(path))])
    files = _files(run)
    with path.open() as file:
        # CSVLogger writes NA if an epoch lacks a column.
        lines = [{k: v if v == "NA" else float(v) for k, v in line.items()} for line in csv.DictReader(file)]
    run.barrier()
    return {"files": files, "lines": lines}


@case("TensorBoard")
def tensorboard(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit, keras, tf

    board = keras.callbacks.TensorBoard(str(run.folder / "logs"), write_graph=False)
    fit(compiled(run), batches(), epochs=2, validation_data=batches(UNEVEN), callbacks=[board])
    run.barrier()
    found = {}
    for kind in ("train", "validation"):
        paths = sorted((run.folder / "logs" / kind).glob("events*"))
        scalars = {}
        for path in paths:
            for event in tf.compat.v1.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    if value.tag.startswith(("epoch_", "evaluation_")):
                        scalars.setdefault(value.tag, []).append(float(tf.make_ndarray(value.tensor)))
        found[kind] = {"files": len(paths), "scalars": scalars}
    run.barrier()
    return found
