"""Reads the flags of tfdist in an absl program of your own, beside a flag that only this program has.

Look at `define_flags` and at the functions that make a strategy and an optimizer from flags; --help lists the flags.
Start the program:

    python examples/own_flags.py --epochs=6 --hidden=64 --strategy=mirrored --devices=2
    tfdist launch --workers 2 examples/own_flags.py --epochs=6 --hidden=64 --compression=fp16
"""

from absl import app, flags

from tfdist.flags import define_flags, optimizer_from_flags, strategy_from_flags

FLAGS = flags.FLAGS
# The group "program" is left out: it has the model and the data of `tfdist train`.
define_flags(groups=("strategy", "training"))
flags.DEFINE_integer("hidden", 32, "Number of hidden units.", lower_bound=1)


def main(_):
    # Imported here, so that --help and wrong flags need no TensorFlow.
    import tensorflow as tf
    from sklearn.datasets import load_digits

    from tfdist.optimizers import create_optimizer
    from tfdist.workers import is_chief

    strategy = strategy_from_flags()
    tf.keras.utils.set_random_seed(FLAGS.seed)
    tf.keras.mixed_precision.set_global_policy(FLAGS.precision)
    digits = load_digits()
    images, labels = digits.data.astype("float32") / 16, digits.target

    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((64,)),
                tf.keras.layers.Dense(FLAGS.hidden, activation="relu"),
                tf.keras.layers.Dense(10, dtype="float32"),
            ]
        )
        # A program has to honour the flags that it defines: this one looks at the rate, not at warmup and decay.
        optimizer = create_optimizer(FLAGS.optimizer, learning_rate=FLAGS.learning_rate, momentum=FLAGS.momentum)
        model.compile(
            # Wraps the optimizer in DistributedOptimizer, if the flags or the strategy require it.
            optimizer_from_flags(optimizer),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(images[:1400], labels[:1400], batch_size=FLAGS.global_batch_size, epochs=FLAGS.epochs, verbose=0)
    result = model.evaluate(images[1400:], labels[1400:], batch_size=64, verbose=0, return_dict=True)
    if is_chief(strategy):
        replicas = strategy.num_replicas_in_sync
        print(f"accuracy {result['accuracy']:.4f} with {FLAGS.hidden} hidden units on {replicas} replicas")


if __name__ == "__main__":
    app.run(main)
