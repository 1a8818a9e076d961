"""Writes TFRecord files, and reads them with distribute_files, which gives each worker its files.

Look at `write_tfrecords`, `parse` and `distribute_files`. Start the program:

    python examples/files.py
    tfdist launch --workers 2 examples/files.py
"""

import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.input import distribute_files, write_tfrecords
from tfdist.saving import written_by_chief
from tfdist.workers import is_chief

strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)


def serialized(image, label):
    """Returns a record: an image of the digits of scikit-learn, whose 64 pixels are 0 to 16, and its label."""
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.astype("uint8").tobytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def parse(record):
    """Turns a record into an image and its label."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, features)
    image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [8, 8, 1])
    return tf.cast(image, tf.float32) / 16, example["label"]


digits = load_digits()
records = [serialized(image, label) for image, label in zip(digits.images, digits.target, strict=True)]
for name, part, shards in (("train", records[:1400], 8), ("test", records[1400:], 4)):
    # The workers share the folder: only the files of the chief are kept, and all workers wait for them.
    with written_by_chief(f"digits/{name}", strategy) as prefix:
        write_tfrecords(part, prefix, num_shards=shards)

# Each worker reads its own files, and an epoch has every record exactly once.
train = distribute_files(strategy, "digits/train-*", parse_fn=parse, global_batch_size=64, seed=1)
test = distribute_files(strategy, "digits/test-*", parse_fn=parse, global_batch_size=64, training=False)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        tf.keras.optimizers.Adam(0.01),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

# The training data repeats without end; fit knows from the dataset how many steps an epoch has.
model.fit(train, epochs=6, verbose=2 if is_chief(strategy) else 0)
result = model.evaluate(test, steps=test.steps_per_epoch, verbose=0, return_dict=True)
if is_chief(strategy):
    print(f"accuracy {result['accuracy']:.4f}, loss {result['loss']:.4f}")
