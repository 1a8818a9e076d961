"""Compresses gradients with DistributedOptimizer, and prints how many bytes a replica has sent.

Look at `AllReduceOptions` and `gradient_traffic`. Start the program:

    python examples/compression.py
    tfdist launch --workers 2 examples/compression.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist import AllReduceOptions
from tfdist.cluster import ClusterConfig
from tfdist.optimizers import DistributedOptimizer, gradient_traffic
from tfdist.workers import is_chief

# Without a cluster, two replicas on this machine: a replica alone sends nothing.
strategy = tfdist.create_strategy(devices=None if ClusterConfig.detect().is_distributed else 2)
tf.keras.utils.set_random_seed(1)

digits = load_digits()
images, labels = digits.data.astype("float32") / 16, digits.target

with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(256, activation="relu"), tf.keras.layers.Dense(10)]
    )
    # The thin factors of an approximation of rank 2, instead of a matrix of 64 x 256. What the approximation leaves out
    # is added to the next gradient, so that nothing is lost. Vectors and small tensors are sent as they are.
    options = AllReduceOptions(compression="powersgd:2")
    optimizer = DistributedOptimizer(tf.keras.optimizers.SGD(0.1, momentum=0.9), all_reduce=options)
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

model.fit(images[:1400], labels[:1400], batch_size=64, epochs=8, verbose=2 if is_chief(strategy) else 0)
result = model.evaluate(images[1400:], labels[1400:], batch_size=64, verbose=0, return_dict=True)
traffic = gradient_traffic(model.optimizer)
if is_chief(strategy):
    print(
        f"accuracy {result['accuracy']:.4f}; {traffic.steps} steps sent "
        f"{traffic.sent / 1e6:.2f} MB instead of {traffic.uncompressed / 1e6:.2f} MB: {traffic.ratio:.1f} times fewer"
    )
