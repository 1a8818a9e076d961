"""Trains with a train_step of your own: an autoencoder of digits that also classifies them, with a weighted loss.

Look at `train_step`: it is written as for one device. tfdist weighs the gradients and losses of each replica by its
rows, so do not divide by the number of replicas. Start the program:

    python examples/custom_train_step.py
    tfdist launch --workers 2 examples/custom_train_step.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.workers import is_chief

strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)

digits = load_digits()
images, labels = digits.data.astype("float32") / 16, digits.target
train, test = slice(0, 1400), slice(1400, None)


class Autoencoder(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = tf.keras.layers.Dense(32, activation="relu")
        self.decoder = tf.keras.layers.Dense(64, activation="sigmoid")
        self.classifier = tf.keras.layers.Dense(10)
        self.means = {name: tf.keras.metrics.Mean(name) for name in ("loss", "reconstruction", "accuracy")}

    @property
    def metrics(self):
        return list(self.means.values())  # Keras resets them at the beginning of each epoch

    def call(self, inputs):
        code = self.encoder(inputs)
        return self.decoder(code), self.classifier(code)

    def loss_of(self, x, y):
        """Returns the mean loss of the rows of this replica."""
        pixels, logits = self(x)
        reconstructions = tf.reduce_mean(tf.square(pixels - x), axis=1)
        losses = 10 * reconstructions + tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        is_right = tf.equal(tf.argmax(logits, axis=1), tf.cast(y, tf.int64))
        # A value for each row, so that a smaller batch counts less. A mean over the rows would count once for a batch.
        for name, values in (("loss", losses), ("reconstruction", reconstructions), ("accuracy", is_right)):
            self.means[name].update_state(tf.cast(values, tf.float32))
        return tf.reduce_mean(losses)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {name: mean.result() for name, mean in self.means.items()}

    def test_step(self, data):
        self.loss_of(*data)
        return {name: mean.result() for name, mean in self.means.items()}


with strategy.scope():
    model = Autoencoder()
    model.compile(tf.keras.optimizers.Adam(0.01))

model.fit(images[train], labels[train], batch_size=64, epochs=6, verbose=2 if is_chief(strategy) else 0)
result = model.evaluate(images[test], labels[test], batch_size=64, verbose=0, return_dict=True)
if is_chief(strategy):
    print(f"accuracy {result['accuracy']:.4f}, reconstruction {result['reconstruction']:.4f}")
