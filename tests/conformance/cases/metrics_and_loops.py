"""Metrics and training loops of one's own, and callbacks that read the model within an epoch."""

from __future__ import annotations

from tests.conformance.case import case
from tests.conformance.cases.own_steps import apply


def _row_sums():
    from tests.conformance.models import keras, tf

    class RowSums(keras.metrics.Metric):
        def __init__(self, name="row_sums", **kwargs):
            super().__init__(name=name, **kwargs)
            self.total = self.add_weight(name="total", shape=(), initializer="zeros")
            self.rows = self.add_weight(name="rows", shape=(), initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            errors = tf.reduce_sum(tf.abs(tf.reshape(tf.cast(y_true, y_pred.dtype), [-1, 1]) - y_pred), axis=1)
            self.total.assign(self.total + tf.reduce_sum(errors))
            self.rows.assign_add(tf.cast(tf.shape(errors)[0], self.rows.dtype))

        def result(self):
            return self.total / self.rows

        def reset_state(self):
            for variable in (self.total, self.rows):
                variable.assign(tf.zeros_like(variable))

    return RowSums()


@case("a metric of one's own with assign and assign_add", floatx="float64")
def metric_with_assign(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit_and_evaluate

    return fit_and_evaluate(compiled(run, metrics=(_row_sums,)), batches(UNEVEN))


@case("a metric function that returns the mean of the batch", floatx="float64")
def scalar_metric_function(run):
    from tests.conformance.models import ONE_LEFT, batches, compiled, fit_and_evaluate, tf

    def mean_size(y_true, y_pred):
        return tf.reduce_mean(tf.abs(y_pred))

    def mean_entropy(y_true, y_pred):
        return -tf.reduce_mean(tf.reduce_sum(tf.nn.softmax(y_pred) * tf.nn.log_softmax(y_pred), axis=-1))

    # compiled calls each callable of `metrics` to make a metric.
    return fit_and_evaluate(compiled(run, metrics=(lambda: mean_size, lambda: mean_entropy)), batches(ONE_LEFT))


@case("custom training loop of the TensorFlow guide", floatx="float64")
def guide_loop(run):
    from tests.conformance.models import BATCH, UNEVEN, batches, compiled, cross_entropy, keras, network, tf, weights

    strategy = run.strategy or tf.distribute.get_strategy()
    model = compiled(run, lambda: network(kernel_regularizer=keras.regularizers.L2(0.1)), metrics=())
    with run.scope():
        cross = cross_entropy(reduction="none")
        accuracy, test_loss = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Mean()
        model.optimizer.build(model.trainable_variables)

    def compute_loss(y, outputs):
        loss = tf.nn.compute_average_loss(cross(y, outputs), global_batch_size=BATCH)
        return loss + tf.nn.scale_regularization_loss(tf.add_n(model.losses))

    def train_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = compute_loss(y, outputs)
        apply(model.optimizer, tape, loss, model.trainable_variables)
        accuracy.update_state(y, outputs)
        return loss

    def test_step(batch):
        x, y = batch
        losses = cross(y, model(x, training=False))
        test_loss.update_state(losses)
        return tf.reduce_sum(losses)

    @tf.function
    def distributed(step, batch):
        return strategy.run(step, args=(batch,))

    @tf.function
    def scheduled(step, iterator):
        return strategy.reduce("SUM", strategy.run(step, args=(next(iterator),)), axis=None)

    losses = []
    if run.topology.ps and not run.is_oracle:
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(lambda *_: batches(UNEVEN).repeat()))
        scheduled_losses = [coordinator.schedule(scheduled, args=(train_step, iterator)) for _ in range(2 * 10)]
        coordinator.join()
        for _ in range(10):
            coordinator.schedule(scheduled, args=(test_step, iterator))
        coordinator.join()
        losses = [float(loss.fetch()) for loss in scheduled_losses]
    else:
        data = strategy.experimental_distribute_dataset(batches(UNEVEN))
        for _ in range(2):
            for batch in data:
                losses.append(float(strategy.reduce("SUM", distributed(train_step, batch), axis=None)))
        for batch in data:
            distributed(test_step, batch)
    return {
        "weights": weights(model),
        "losses": losses,
        "accuracy": float(accuracy.result()),
        "tested": float(test_loss.result()),
    }


_AHEAD = "the steps of workers are scheduled ahead of the callbacks"


@case("a callback that reads the model within an epoch", floatx="float64", not_on={"parameter_server": _AHEAD})
def callback_reads_the_model(run):
    from tests.conformance.models import UNEVEN, X, as_float, batches, compiled, fit, keras, weights

    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch % 4 == 3:
                x = as_float(X[:5])
                seen.append(
                    {
                        "weights": weights(self.model),
                        "predicted": self.model.predict(x, verbose=0),
                        "called": keras.backend.get_value(self.model(x, training=False)),
                        "logs": {name: float(value) for name, value in logs.items()},
                    }
                )

    result = fit(compiled(run), batches(UNEVEN), callbacks=[Look()])
    return {**result, "seen": seen}
