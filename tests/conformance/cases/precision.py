"""Mixed precision and loss scaling."""

from __future__ import annotations

from tests.conformance.case import case

_BFLOAT16 = "bfloat16 has 8 significant bits: the sum of a replica's rows is rounded to them before replicas are added"
_FLOAT16 = "float16 has 11 significant bits: the sum of a replica's rows is rounded to them before replicas are added"

# The strategies on which Keras 2 refuses loss scaling.
_KERAS_2 = ("central_storage", "parameter_server")


@case("mixed_bfloat16", tolerance=3e-2, why=_BFLOAT16)
def mixed_bfloat16(run):
    from tests.conformance.models import compiled, fit, keras

    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    return fit(compiled(run, metrics=()))


@case("mixed_float16, dynamic loss scale", tolerance=4e-3, why=_FLOAT16, refused_on=_KERAS_2)
def mixed_float16(run):
    from tests.conformance.models import compiled, fit, keras

    keras.mixed_precision.set_global_policy("mixed_float16")
    return fit(compiled(run, metrics=()))


@case("an infinity on one replica: all skip the step and halve the scale", per=("ps",), refused_on=_KERAS_2)
def infinity_on_one_replica(run):
    import numpy as np

    from tests.conformance.models import BATCH, KERAS_3, X, Y, compiled, fit, keras, sgd, tf

    x = X.copy()
    # The last rows of the fourth and the seventh batch, which belong to the last replica.
    x[4 * BATCH - 1], x[7 * BATCH - 1] = np.inf, np.inf
    scales = []

    def optimizer():
        options = {"initial_scale": 1024.0, "dynamic_growth_steps": 3}
        if KERAS_3:
            return keras.optimizers.LossScaleOptimizer(sgd(global_clipnorm=0.5), **options)
        return keras.mixed_precision.LossScaleOptimizer(sgd(global_clipnorm=0.5), **options)

    model = compiled(run, optimizer=optimizer, metrics=())

    def note(batch, logs):
        own = model.optimizer
        scales.append(float((own.dynamic_scale if KERAS_3 else own.loss_scale).numpy()))

    recorder = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(BATCH)
    result = fit(model, data, callbacks=[recorder])
    # On parameter servers, steps are scheduled ahead of the callbacks, so only the last scale is compared.
    seen = scales[-1:] if run.topology.ps else scales
    return {"weights": result["weights"], "iterations": result["iterations"], "scales": seen}
