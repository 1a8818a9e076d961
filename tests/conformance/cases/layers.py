"""Layers whose result depends on the whole batch or on random numbers, and layers that add losses."""

from __future__ import annotations

from tests.conformance.case import case


def _ghost_fit(model, topology, rows, epochs):
    """Trains on one device as replicas train with a plain batch normalization.

    Each replica normalizes its own part of the batch and keeps running statistics of its own. The statistics are
    averaged after the training. Central storage has only one copy of them, so there they are averaged after every step.
    """
    import numpy as np

    from tests.conformance.models import BATCH, X, Y, cross_entropy, tf

    parts = topology.replicas
    loss_of = cross_entropy(reduction="none")
    variables = model.non_trainable_variables
    states = [[tf.identity(variable) for variable in variables] for _ in range(parts)]

    def average():
        return [tf.add_n(list(values)) / parts for values in zip(*states, strict=True)]

    for start in [start for _ in range(epochs) for start in range(0, rows, BATCH)]:
        order = np.arange(start, min(start + BATCH, rows))
        size = -(-len(order) // parts)
        gradients = [tf.zeros_like(variable) for variable in model.trainable_variables]
        for part in range(parts):
            own = order[part * size : (part + 1) * size]
            if not len(own):
                continue
            for variable, value in zip(variables, states[part], strict=True):
                variable.assign(value)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(loss_of(Y[own], model(X[own], training=True))) / len(order)
            for i, gradient in enumerate(tape.gradient(loss, model.trainable_variables)):
                gradients[i] += gradient
            states[part] = [tf.identity(variable) for variable in variables]
        if topology.strategy == "central_storage":
            states = [average() for _ in range(parts)]
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    for variable, value in zip(variables, average(), strict=True):
        variable.assign(value)


def _batch_norm(run, rows):
    from tests.conformance.models import BATCH, X, Y, batches, compiled, keras, network, weights

    normalization = []

    def make():
        normalization.append(keras.layers.BatchNormalization(momentum=0.9))
        return network(hidden=normalization)

    model = compiled(run, make)
    if run.is_oracle:
        _ghost_fit(model, run.topology, rows, 2)
    else:
        model.fit(batches(rows), epochs=2, verbose=0)
    evaluated = model.evaluate(X, Y, batch_size=BATCH, verbose=0)
    return {"weights": weights(model), "evaluated": [float(value) for value in evaluated]}


@case("BatchNormalization: running statistics averaged", per=("replicas", "strategy"))
def batch_normalization(run):
    from tests.conformance.models import ROWS

    return _batch_norm(run, ROWS)


@case("BatchNormalization where a replica gets no rows", per=("replicas", "strategy"))
def batch_normalization_empty_replica(run):
    from tests.conformance.models import BATCH, ROWS

    return _batch_norm(run, ROWS - BATCH + 1)


def _synchronized(run, rows):
    from tests.conformance.models import batches, compiled, fit, keras, network

    def normalized():
        return network(hidden=[keras.layers.BatchNormalization(momentum=0.9, synchronized=True)])

    return fit(compiled(run, normalized), batches(rows))


@case("BatchNormalization(synchronized=True)")
def synchronized_batch_normalization(run):
    from tests.conformance.models import ROWS

    return _synchronized(run, ROWS)


@case("BatchNormalization(synchronized=True) where a replica gets no rows")
def synchronized_batch_normalization_uneven(run):
    from tests.conformance.models import BATCH, ROWS

    return _synchronized(run, ROWS - BATCH + 1)


@case("BatchNormalization(synchronized=True), last batch smaller than the rest", floatx="float64")
def synchronized_batch_normalization_exact(run):
    from tests.conformance.models import UNEVEN

    return _synchronized(run, UNEVEN)


@case("Dropout: replicas draw differently, runs repeat", per=("replicas",))
def dropout(run):
    import numpy as np

    from tests.conformance.models import batches, compiled, keras, network, tf, weights

    def once():
        model = compiled(run, lambda: network(hidden=[keras.layers.Dropout(0.5, seed=11)]), metrics=())
        history = model.fit(batches(), epochs=1, verbose=0)
        return [*weights(model), np.asarray(history.history["loss"])]

    first, second = once(), once()
    keras.backend.clear_session()
    keras.utils.set_random_seed(5)
    with run.scope():
        layer = keras.layers.Dropout(0.5)
        layer.build((None, 64))

    def draw():
        return layer(tf.ones([1, 64]), training=True)

    if run.is_oracle:
        drawn = [tf.zeros([1, 64]) + tf.one_hot([i], 64) for i in range(run.topology.replicas)]
        rows = tf.concat(drawn, axis=0)
    else:
        rows = run.strategy.gather(tf.function(lambda: run.strategy.run(draw))(), axis=0)
    return {
        "repeats": all(np.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(first, second, strict=True)),
        "finite": all(np.isfinite(value).all() for value in first),
        "different masks": len({row.tobytes() for row in np.asarray(rows)}),
    }


@case("layers with add_loss")
def add_loss(run):
    from tests.conformance.models import compiled, fit, keras, network, tf

    class Penalty(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(0.1 * tf.reduce_mean(tf.square(inputs)))
            return inputs

    return fit(compiled(run, lambda: network(hidden=[Penalty()])))


@case("regularizers counted once")
def regularizers(run):
    from tests.conformance.models import compiled, fit, keras, network

    return fit(compiled(run, lambda: network(kernel_regularizer=keras.regularizers.L2(0.1), activity_regularizer="l2")))


@case("add_loss beside synchronized BatchNormalization")
def add_loss_where_replicas_meet(run):
    from tests.conformance.models import compiled, fit, keras, network

    def make():
        layer = keras.layers.BatchNormalization(synchronized=True)
        return network(hidden=[layer], activity_regularizer=keras.regularizers.L2(1.0))

    return fit(compiled(run, make))
