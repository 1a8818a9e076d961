"""The rows of the core: for each kind of row, cases of the conformance suite, and the case of AutoResume."""

from __future__ import annotations

from tests.conformance.case import FLOAT64_TOLERANCE, Case, Run, all_cases, distributed_cases

TOPOLOGIES = ("Mirrored 2", "MultiWorkerMirrored 2x1")

ROWS: dict[str, tuple[str, ...]] = {
    "fit": ("tf_data", "dataset_function", "strings", "steps_per_execution_uneven", "batch_logs"),
    "evaluate": ("evaluate_dataset", "stateful_metrics"),
    "predict": ("predict_arrays",),
    "uneven batches": ("last_batch_of_one_row", "masked_loss", "pipelines_end_at_different_steps"),
    "clipping": ("global_clipnorm", "clipnorm_sparse"),
    "BatchNormalization": ("batch_normalization", "synchronized_batch_normalization_exact"),
    "losses of layers": ("regularizers", "endpoint_layer"),
    "Dropout": ("dropout",),
    "accumulation": ("gradient_accumulation", "ema"),
    "loss scale": ("infinity_on_one_replica",),
    "DistributedOptimizer": ("global_clipnorm-none", "gradient_accumulation-none"),
    "own train_step": ("compute_loss_and_tracker", "reduce_mean_step", "scalars_as_logs", "two_optimizers"),
    "own loop": ("own_loop",),
    "save and load": ("keras_file", "weights_file", "backup_and_restore"),
    "AutoResume": ("auto_resume",),
}


def own_cases() -> dict[str, Case]:
    """Returns the cases of the core that are not in docs/conformance.md, because stock Keras has nothing like them."""
    one = Case(
        name="auto_resume",
        group="callbacks",
        title="AutoResume goes on with the next batch",
        function=_auto_resume,
        tolerance=FLOAT64_TOLERANCE,
        floatx="float64",
    )
    return {one.name: one}


def cases() -> dict[str, list[Case]]:
    """Returns the cases of each kind of row."""
    known = {**all_cases(), **distributed_cases(), **own_cases()}
    return {kind: [known[name] for name in names] for kind, names in ROWS.items()}


def _auto_resume(run: Run) -> object:
    from tests.conformance.models import compiled, fit, keras, regression

    def model() -> object:
        return compiled(run, loss="mse", metrics=("mae",), optimizer=lambda: keras.optimizers.Adam(0.01))

    def fitted(*callbacks: object) -> object:
        # A restarted program makes its dataset anew, too, which determines the order of the batches.
        return fit(model(), regression().shuffle(64, seed=3), epochs=3, callbacks=list(callbacks))

    if run.is_oracle:
        return fitted()
    from tfdist.checkpoint import AutoResume

    class Interruption(Exception):
        pass

    class Interrupt(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            Interrupt.steps += 1
            if Interrupt.steps == 14:
                raise Interruption

    def resume() -> AutoResume:
        return AutoResume(str(run.folder / "snapshots"), every_steps=3)

    try:
        fitted(Interrupt(), resume())
    except Interruption:
        run.barrier()
        return fitted(resume())
    raise AssertionError("expected the first fit to be interrupted")
