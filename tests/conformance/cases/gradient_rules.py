"""Operations on gradients between the sum over replicas and the update of the weights."""

from __future__ import annotations

from tests.conformance.case import case


def _clipped(run, **options):
    from tests.conformance.models import compiled, fit, sgd

    return fit(compiled(run, optimizer=lambda: sgd(**options)))


@case("clipvalue")
def clipvalue(run):
    return _clipped(run, clipvalue=0.01)


@case("clipnorm")
def clipnorm(run):
    return _clipped(run, clipnorm=0.05)


@case("global_clipnorm")
def global_clipnorm(run):
    return _clipped(run, global_clipnorm=0.05)


@case("clipnorm with sparse gradients")
def clipnorm_sparse(run):
    import numpy as np

    from tests.conformance.models import BATCH, ROWS, Y, compiled, fit, keras, sgd, tf

    tokens = np.random.default_rng(5).integers(0, 40, size=(ROWS, 3))

    def make():
        inputs = keras.layers.Input((3,), dtype="int64")
        embedded = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(inputs))
        return keras.Model(inputs, keras.layers.Dense(2)(embedded))

    data = tf.data.Dataset.from_tensor_slices((tokens, Y)).batch(BATCH)
    return fit(compiled(run, make, optimizer=lambda: sgd(global_clipnorm=0.05)), data)


@case("Adam")
def adam(run):
    from tests.conformance.models import compiled, fit, keras

    return fit(compiled(run, optimizer=lambda: keras.optimizers.Adam(0.01)))


@case("schedule of the learning rate")
def learning_rate_schedule(run):
    from tests.conformance.models import compiled, fit, keras, sgd

    return fit(compiled(run, optimizer=lambda: sgd(learning_rate=keras.optimizers.schedules.CosineDecay(0.05, 15))))


@case("AdamW: decoupled weight decay")
def adamw(run):
    from tests.conformance.models import compiled, fit, keras

    def optimizer():
        result = keras.optimizers.AdamW(0.01, weight_decay=0.1)
        result.exclude_from_weight_decay(var_names=["bias"])
        return result

    return fit(compiled(run, optimizer=optimizer))


@case("exponential moving average of weights, written back", refused_on=("parameter_server",))
def ema(run):
    from tests.conformance.models import compiled, fit, sgd

    return fit(compiled(run, optimizer=lambda: sgd(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4)))


@case("exponential moving average of weights, at the end")
def ema_at_the_end(run):
    from tests.conformance.models import compiled, fit, sgd

    return fit(compiled(run, optimizer=lambda: sgd(use_ema=True, ema_momentum=0.9)))


@case("gradient_accumulation_steps=4", refused_on=("parameter_server",))
def gradient_accumulation(run):
    from tests.conformance.models import KERAS_3, compiled, fit, sgd

    if not KERAS_3:
        return "Keras 2 has no gradient_accumulation_steps"
    # Two epochs have 20 batches, which make five updates.
    return fit(compiled(run, optimizer=lambda: sgd(gradient_accumulation_steps=4, global_clipnorm=0.1)))


@case("constraints on weights")
def constraints(run):
    from tests.conformance.models import compiled, fit, keras, network

    return fit(compiled(run, lambda: network(kernel_constraint=keras.constraints.MaxNorm(0.9))))


@case("loss with reduction 'sum'")
def summed_loss(run):
    from tests.conformance.models import UNEVEN, batches, compiled, cross_entropy, fit, sgd

    model = compiled(run, optimizer=lambda: sgd(learning_rate=0.001), loss=cross_entropy(reduction="sum"))
    return fit(model, batches(UNEVEN))


@case("own train_step")
def own_train_step(run):
    from tests.conformance.models import compiled, fit, keras, network, tf

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = self.compute_loss(x, y, outputs)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"size": tf.reduce_mean(tf.abs(outputs))}

    result = fit(compiled(run, lambda: network(Own), metrics=()))
    # The log `size` is not compared: Keras 3 averages such a log over replicas, and Keras 2 adds it up.
    return {"weights": result["weights"], "iterations": result["iterations"]}


@case("own loop with strategy.run")
def own_loop(run):
    from tests.conformance.models import BATCH, ROWS, batches, compiled, cross_entropy, keras, sgd, tf, weights

    model = compiled(run, optimizer=lambda: sgd(global_clipnorm=0.1), metrics=())
    with run.scope():
        loss_of = cross_entropy(reduction="none")
        mean = keras.metrics.Mean()

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            rows = loss_of(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(rows, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean.update_state(rows)

    if run.is_oracle:
        for batch in batches():
            tf.function(step)(batch)
    elif run.topology.ps:
        coordinator = tf.distribute.coordinator.ClusterCoordinator(run.strategy)
        with run.scope():
            model.optimizer.build(model.trainable_variables)

        @tf.function
        def worker_step(iterator):
            run.strategy.run(step, args=(next(iterator),))

        iterator = iter(coordinator.create_per_worker_dataset(batches))
        for _ in range(ROWS // BATCH):
            coordinator.schedule(worker_step, args=(iterator,))
        coordinator.join()
    else:

        @tf.function
        def replicas_step(batch):
            run.strategy.run(step, args=(batch,))

        for batch in run.strategy.experimental_distribute_dataset(batches()):
            replicas_step(batch)
    return {
        "weights": weights(model),
        "mean": float(mean.result()),
        "iterations": int(model.optimizer.iterations.numpy()),
    }
