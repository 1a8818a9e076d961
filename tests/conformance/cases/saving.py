"""Models that are saved under a strategy and loaded under another or without one, with the optimizer state."""

from __future__ import annotations

import contextlib

from tests.conformance.case import case


def _adam():
    from tests.conformance.models import keras

    return keras.optimizers.Adam(0.01)


def _other(run):
    """Returns the scope of another strategy, OneDeviceStrategy; for the oracle, an empty context."""
    import tensorflow as tf

    return contextlib.nullcontext() if run.is_oracle else tf.distribute.OneDeviceStrategy("/CPU:0").scope()


def _continued(run, save, load):
    """Saves a model after ten steps and returns the weights after ten more steps of the loaded model.

    The model is saved under the strategy of the run and loaded without a strategy and under OneDeviceStrategy. A second
    model is saved without a strategy and loaded under the strategy of the run.
    """
    from tests.conformance.case import Run
    from tests.conformance.models import compiled, weights

    def steps(model):
        model.fit(*_data(), epochs=1, verbose=0)
        return weights(model)

    plain = Run(None, run.topology, run.folder, run.rank)
    model = compiled(run, optimizer=_adam, metrics=())
    steps(model)
    save(model, run.folder / "with_strategy")
    run.barrier()
    with contextlib.nullcontext():
        without = steps(load(plain, run.folder / "with_strategy"))
    with _other(run):
        under_another = steps(load(plain, run.folder / "with_strategy"))
    run.barrier()
    model = compiled(plain, optimizer=_adam, metrics=())
    steps(model)
    own = run.folder / f"without_strategy_{run.rank}"
    save(model, own)
    run.barrier()
    under_this = steps(load(run, own))
    run.barrier()
    return {"without strategy": without, "under another strategy": under_another, "under this strategy": under_this}


def _data():
    from tests.conformance.models import batches

    return (batches(),)


@case(".keras file")
def keras_file(run):
    from tests.conformance.models import keras

    def load(where, path):
        with where.scope():
            return keras.models.load_model(f"{path}.keras")

    return _continued(run, lambda model, path: model.save(f"{path}.keras"), load)


@case("weights file")
def weights_file(run):
    from tests.conformance.models import compiled, weights

    def steps(model):
        model.fit(*_data(), epochs=1, verbose=0)
        return weights(model)

    model = compiled(run, metrics=())
    trained = steps(model)
    path = str(run.folder / "model.weights.h5")
    model.save_weights(path)
    run.barrier()
    from tests.conformance.case import Run

    plain = Run(None, run.topology, run.folder, run.rank)
    results = {}
    for name, where in (("without strategy", plain), ("under this strategy", run)):
        other = compiled(where, metrics=())
        for weight in other.weights:
            weight.assign(weight * 0)
        other.load_weights(path)
        results[name] = weights(other)
    run.barrier()
    return {"trained": trained, **results}


@case("tf.train.Checkpoint")
def tf_checkpoint(run):
    from tests.conformance.models import compiled, tf

    def save(model, path):
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(f"{path}-{run.rank}/ckpt")

    def load(where, path):
        model = compiled(where, optimizer=_adam, metrics=())
        with where.scope():
            model.optimizer.build(model.trainable_variables)
            checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
            checkpoint.read(f"{path}-{run.rank}/ckpt").expect_partial()
        return model

    return _continued(run, save, load)


@case("model.export: one SavedModel")
def export(run):
    from tests.conformance.models import X, compiled, tf

    model = compiled(run, metrics=())
    model.fit(*_data(), epochs=1, verbose=0)
    folder = run.folder / "exported"
    model.export(str(folder))
    run.barrier()
    # Each parameter server writes a shard, so the number of these files may differ.
    names = (path.name for path in folder.rglob("*") if path.is_file())
    files = sorted(name for name in names if not name.startswith("variables.data"))
    loaded = tf.saved_model.load(str(folder))
    served = loaded.serve(tf.constant(X[:8]))
    other_files = [path.name for path in run.folder.iterdir() if path.name != "exported"]
    run.barrier()
    return {"files": files, "served": served, "other files": other_files}
