"""Classifies texts of different lengths: from which package of Python's library does a docstring come?

Look at `mask_zero`: the padding of short texts must not reach the GRU, whatever the longest text of a replica is. Start
the program:

    python examples/text_masking.py
    tfdist launch --workers 2 examples/text_masking.py
"""

import ast
import pathlib
import sysconfig

import numpy as np
import tensorflow as tf

import tfdist
from tfdist.workers import is_chief

PACKAGES = ("asyncio", "email", "logging", "unittest")
WORDS, LENGTH = 2000, 24

strategy = tfdist.create_strategy()
tf.keras.utils.set_random_seed(1)


def docstrings(package):
    """Returns the docstrings of the functions and classes of a package that have at least four words."""
    folder = pathlib.Path(sysconfig.get_path("stdlib"), package)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    # Sorted, because every worker has to read the same rows in the same order.
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.py"))]
    found = [ast.get_docstring(node) or "" for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]
    return [text for text in dict.fromkeys(found) if len(text.split()) >= 4][:400]


rows = [(text, label) for label, package in enumerate(PACKAGES) for text in docstrings(package)]
rows = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
texts, labels = [text for text, _ in rows], np.array([label for _, label in rows])
split = len(rows) * 4 // 5

# Outside of the model, so that words become numbers once, and not in each epoch again. 0 stands for padding.
vectorize = tf.keras.layers.TextVectorization(max_tokens=WORDS, output_sequence_length=LENGTH)
vectorize.adapt(tf.constant(texts[:split]))
tokens = vectorize(tf.constant(texts)).numpy()

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((LENGTH,), dtype="int32"),
            # Its gradient is sparse: only the rows of the words in a batch are sent.
            tf.keras.layers.Embedding(WORDS, 32, mask_zero=True),
            # The state after the last word, not after the padding.
            tf.keras.layers.GRU(32),
            tf.keras.layers.Dense(len(PACKAGES)),
        ]
    )
    model.compile(
        tf.keras.optimizers.Adam(0.01),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(tokens[:split], labels[:split], batch_size=64, epochs=5, verbose=2 if is_chief(strategy) else 0)
result = model.evaluate(tokens[split:], labels[split:], batch_size=64, verbose=0, return_dict=True)
if is_chief(strategy):
    most = np.bincount(labels[split:]).max() / len(labels[split:])
    print(f"accuracy {result['accuracy']:.4f}, of the most frequent package {most:.4f}, {len(rows)} docstrings")
