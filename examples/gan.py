"""Trains a GAN with two optimizers in one train_step: a generator learns to draw the digits of scikit-learn.

Look at `train_step`, which is written as for one device: every gradient is summed by the optimizer that applies it.
Start the program:

    python examples/gan.py
    tfdist launch --workers 2 examples/gan.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.workers import is_chief

NOISE = 16

strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)
images = load_digits().data.astype("float32") / 16


class Gan(tf.keras.Model):
    def __init__(self):
        super().__init__()
        layers = tf.keras.layers
        self.generator = tf.keras.Sequential(
            [layers.Input((NOISE,)), layers.Dense(64, activation="relu"), layers.Dense(64, activation="sigmoid")]
        )
        self.critic = tf.keras.Sequential(
            [layers.Input((64,)), layers.Dense(64, activation="leaky_relu"), layers.Dense(1)]
        )
        # A model takes one optimizer in `compile`. Others are attributes, which the scope of the strategy makes too.
        self.critic_optimizer = tf.keras.optimizers.Adam(0.002, beta_1=0.5)

    def call(self, noise):
        return self.generator(noise)

    def train_step(self, real):
        # Each replica draws other noise, as the rows of one device differ too.
        noise = tf.random.normal([tf.shape(real)[0], NOISE])
        # A persistent tape, since the two gradients are of different losses.
        with tf.GradientTape(persistent=True) as tape:
            drawn = self.generator(noise, training=True)
            on_real, on_drawn = self.critic(real, training=True), self.critic(drawn, training=True)
            critic_loss = tf.reduce_mean(tf.nn.softplus(-on_real)) + tf.reduce_mean(tf.nn.softplus(on_drawn))
            generator_loss = tf.reduce_mean(tf.nn.softplus(-on_drawn))
        for optimizer, loss, network in (
            (self.critic_optimizer, critic_loss, self.critic),
            (self.optimizer, generator_loss, self.generator),
        ):
            gradients = tape.gradient(loss, network.trainable_variables)
            optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        return {"critic_loss": critic_loss, "generator_loss": generator_loss}


def distance(model):
    """Returns how far the mean image of 500 drawn images is from the mean of the real ones, in grey levels of 16."""
    drawn = model(tf.random.stateless_normal([500, NOISE], seed=[1, 2]))
    return float(tf.reduce_mean(tf.abs(tf.reduce_mean(drawn, axis=0) - images.mean(axis=0)))) * 16


with strategy.scope():
    model = Gan()
    model.compile(tf.keras.optimizers.Adam(0.002, beta_1=0.5))

before = distance(model)
model.fit(images, batch_size=64, epochs=12, verbose=0)
if is_chief(strategy):
    print(f"distance of the mean image {before:.2f} before training, {distance(model):.2f} after")
