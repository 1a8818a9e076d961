"""Programs that train several networks, each with its loss: adversaries, teachers and students, and nested models."""

from __future__ import annotations

from tests.conformance.case import case
from tests.conformance.cases.own_steps import apply, own_model


def _dense(*sizes):
    from tests.conformance.models import keras

    return keras.Sequential(
        [
            keras.layers.Input((sizes[0],)),
            *[keras.layers.Dense(size, activation="tanh") for size in sizes[1:-1]],
            keras.layers.Dense(sizes[-1]),
        ]
    )


def _noise_and_rows(rows):
    """Returns rows beside their noise as a dataset. Noise from a random layer would differ between replicas."""
    from tests.conformance.models import BATCH, X, as_float, np, tf

    noise = np.random.default_rng(11).normal(size=(rows, 5))
    return tf.data.Dataset.from_tensor_slices((as_float(X[:rows]), as_float(noise))).batch(BATCH)


def _adversaries(run, train_step, rows, critic=None):
    """Trains a generator and a critic, each with an optimizer."""
    from tests.conformance.models import fit, keras, sgd, tf

    class Adversaries(keras.Model):
        def __init__(self):
            super().__init__()
            self.generator, self.critic = _dense(4, 6, 8), critic() if critic else _dense(8, 6, 1)
            self.trackers = [keras.metrics.Mean(name="critic_loss"), keras.metrics.Mean(name="generator_loss")]

        def compile(self, critic_optimizer, generator_optimizer):
            super().compile()
            self.critic_optimizer, self.generator_optimizer = critic_optimizer, generator_optimizer

        @property
        def metrics(self):
            return self.trackers

        def train_step(self, data):
            for tracker, loss in zip(self.trackers, train_step(self, *data), strict=True):
                tracker.update_state(loss)
            return {tracker.name: tracker.result() for tracker in self.trackers}

    keras.utils.set_random_seed(3)
    with run.scope():
        model = Adversaries()
        model.compile(sgd(), sgd(learning_rate=0.02))
    result = fit(model, _noise_and_rows(rows))
    iterations = [int(one.iterations.numpy()) for one in (model.critic_optimizer, model.generator_optimizer)]
    _, noise = next(iter(_noise_and_rows(rows)))
    return {**result, "iterations": iterations, "made": tf.identity(model.generator(noise[:, :4]))}


@case("two networks, two GradientTapes and two optimizers", floatx="float64")
def two_optimizers(run):
    from tests.conformance.models import UNEVEN, keras, tf

    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(model, rows, noise):
        with tf.GradientTape() as tape:
            real, made = model.critic(rows), model.critic(model.generator(noise[:, :4]))
            critic_loss = loss_of(tf.ones_like(real), real) + tf.reduce_mean(tf.nn.softplus(made))
        apply(model.critic_optimizer, tape, critic_loss, model.critic.trainable_variables)
        with tf.GradientTape() as tape:
            made = model.critic(model.generator(noise[:, :4]))
            generator_loss = loss_of(tf.ones_like(made), made)
        apply(model.generator_optimizer, tape, generator_loss, model.generator.trainable_variables)
        return critic_loss, generator_loss

    return _adversaries(run, train_step, UNEVEN)


def _penalized(run, rows, critic=None, weight=10):
    """Trains two networks, where the slopes of the critic's outputs are part of the critic's loss."""
    from tests.conformance.models import tf

    def penalty(model, rows, made, noise):
        between = rows + tf.sigmoid(noise[:, 4:]) * (made - rows)
        with tf.GradientTape() as tape:
            tape.watch(between)
            scores = model.critic(between, training=True)
        slopes = tape.gradient(scores, between)
        return tf.reduce_mean(tf.square(tf.norm(slopes, axis=1) - 1))

    def train_step(model, rows, noise):
        with tf.GradientTape() as tape:
            made = model.generator(noise[:, :4])
            critic_loss = tf.reduce_mean(model.critic(made, training=True))
            critic_loss -= tf.reduce_mean(model.critic(rows, training=True))
            critic_loss += weight * penalty(model, rows, made, noise)
        apply(model.critic_optimizer, tape, critic_loss, model.critic.trainable_variables)
        with tf.GradientTape() as tape:
            generator_loss = -tf.reduce_mean(model.critic(model.generator(noise[:, :4])))
        apply(model.generator_optimizer, tape, generator_loss, model.generator.trainable_variables)
        return critic_loss, generator_loss

    return _adversaries(run, train_step, rows, critic)


@case("two networks with a gradient penalty", floatx="float64")
def gradient_penalty(run):
    from tests.conformance.models import ONE_LEFT

    return _penalized(run, ONE_LEFT)


@case("gradient penalty through BatchNormalization(synchronized=True)", floatx="float64")
def gradient_penalty_with_synchronized_batch_normalization(run):
    from tests.conformance.models import UNEVEN, keras

    def critic():
        return keras.Sequential(
            [
                keras.layers.Input((8,)),
                # A bias here would have no influence.
                keras.layers.Dense(6, use_bias=False),
                keras.layers.BatchNormalization(momentum=0.9, synchronized=True),
                # Without it the outputs of a batch always have the same sum, whose slopes are 0.
                keras.layers.Activation("tanh"),
                keras.layers.Dense(1),
            ]
        )

    # In a batch of one row the slopes are 0, too. A larger weight would amplify rounding in float32.
    return _penalized(run, UNEVEN, critic, weight=1)


@case("moving average of the weights in a teacher network", floatx="float64")
def teacher_of_moving_averages(run):
    from tests.conformance.models import compiled, fit, keras, regression, tf

    class Averaged(keras.Model):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = _dense(8, 6, 1), _dense(8, 6, 1)
            self.teacher.set_weights(self.student.get_weights())
            self.teacher.trainable = False

        def call(self, inputs):
            return self.teacher(inputs)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self.student(x, training=True)
                loss = tf.reduce_mean(tf.square(outputs - y))
                loss += 0.5 * tf.reduce_mean(tf.square(outputs - tf.stop_gradient(self.teacher(x))))
            apply(self.optimizer, tape, loss, self.student.trainable_variables)
            for kept, weight in zip(self.teacher.weights, self.student.weights, strict=True):
                kept.assign(0.9 * kept + 0.1 * weight)
            return {"loss": loss}

    model = compiled(run, Averaged, metrics=(), loss="mse")
    result = fit(model, regression())
    return {**result, "evaluated": model.evaluate(regression(), verbose=0)}


@case("distillation with a frozen teacher", floatx="float64")
def distillation(run):
    from tests.conformance.models import UNEVEN, batches, compiled, fit_and_evaluate, keras, tf

    class Distiller(keras.Model):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = _dense(8, 6, 2), _dense(8, 12, 2)
            self.teacher.trainable = False
            self.divergence = keras.losses.KLDivergence()

        def call(self, inputs):
            return self.student(inputs)

        def train_step(self, data):
            x, y = data
            taught = self.teacher(x, training=False)
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                soft = self.divergence(tf.nn.softmax(taught / 3), tf.nn.softmax(outputs / 3))
                loss = 0.3 * self.compute_loss(x, y, outputs) + 0.7 * 9 * soft
            apply(self.optimizer, tape, loss, self.trainable_variables)
            return {"soft": soft, **self.compute_metrics(x, y, outputs, sample_weight=None)}

    return fit_and_evaluate(compiled(run, Distiller), batches(UNEVEN))


@case("models within a model, train_step of the outer model", floatx="float64")
def models_within_a_model(run):
    from tests.conformance.models import ONE_LEFT, compiled, fit_and_evaluate, regression, tf

    def loss_of(model, x, y, training):
        hidden = model.encoder(x, training=training)
        loss = tf.reduce_mean(tf.square(model.decoder(hidden) - x)) + tf.reduce_mean(tf.abs(model.head(hidden) - y))
        return loss + 0.01 * tf.reduce_mean(tf.reduce_sum(tf.square(hidden), axis=1))

    class Coder(own_model(loss_of)):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = _dense(8, 6, 3), _dense(3, 6, 8)
            self.head = _dense(3, 1)

        def call(self, inputs, training=None):
            hidden = self.encoder(inputs, training=training)
            return self.decoder(hidden), self.head(hidden)

    return fit_and_evaluate(compiled(run, Coder, metrics=(), loss=None), regression(ONE_LEFT))
