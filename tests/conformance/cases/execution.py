"""Options that change how steps are executed."""

from __future__ import annotations

from tests.conformance.case import case


@case("number of replicas", per=("replicas",))
def number_of_replicas(run):
    return run.topology.replicas if run.is_oracle else run.strategy.num_replicas_in_sync


@case("steps_per_execution=8, which does not divide the epoch")
def steps_per_execution(run):
    from tests.conformance.models import compiled, fit

    return fit(compiled(run, steps_per_execution=8))


@case("steps_per_execution=8, uneven, with validation and predict")
def steps_per_execution_uneven(run):
    from tests.conformance.models import BATCH, UNEVEN, X, batches, compiled, fit

    model = compiled(run, steps_per_execution=8)
    result = fit(model, batches(UNEVEN), validation_data=batches(UNEVEN))
    return {**result, "predicted": model.predict(X[:UNEVEN], batch_size=BATCH, verbose=0)}


@case(
    "jit_compile=True",
    refused_on=("mirrored", "multi_worker_mirrored", "central_storage", "parameter_server"),
)
def jit_compile(run):
    from tensorflow.python.framework import config

    from tests.conformance.models import compiled, fit

    # Keras ignores jit_compile while the determinism of TensorFlow is on.
    config.disable_op_determinism()
    try:
        return fit(compiled(run, jit_compile=True))
    finally:
        config.enable_op_determinism()


@case("jit_compile=False")
def no_jit_compile(run):
    from tests.conformance.models import compiled, fit

    return fit(compiled(run, jit_compile=False))


@case("run_eagerly=True", refused_on=("parameter_server",))
def run_eagerly(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit

    return fit(compiled(run, run_eagerly=True), batches(UNEVEN))


@case("train_on_batch, test_on_batch")
def on_batch(run):
    from tests.conformance.models import BATCH, X, Y, compiled, weights

    model = compiled(run)
    losses = [[float(v) for v in model.train_on_batch(X[:BATCH], Y[:BATCH])] for _ in range(10)]
    tested = [float(value) for value in model.test_on_batch(X[:BATCH], Y[:BATCH])]
    return {"weights": weights(model), "losses": losses, "tested": tested}
