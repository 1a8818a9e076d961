"""Trains on several workers: python program.py FOLDER WORD... Each worker writes what it has trained into the folder.

Words: a transport (auto, tensorflow, native); "mirrored" for one process; "devices:2"; "distributed" for
DistributedOptimizer, "compression:NAME"; "algorithm:NAME"; "kill" or "sleep": what worker 1 does in the middle;
"without": worker 1 has no tfdist-native; "absent": no worker has it; "old": it has another protocol on all workers;
"firewall": no worker reaches the port on which worker 0 waits for the others.
"""

import hashlib
import json
import os
import signal
import socket
import sys
import time

import numpy as np

FOLDER, *WORDS = sys.argv[1:]
INDEX = json.loads(os.environ.get("TF_CONFIG") or '{"task": {"index": 0}}')["task"]["index"]


def value(name):
    return next((word.partition(":")[2] for word in WORDS if word.startswith(f"{name}:")), None)


if "absent" in WORDS or ("without" in WORDS and INDEX == 1):
    sys.modules["tfdist_native"] = None

import tensorflow as tf  # noqa: E402

import tfdist  # noqa: E402
from tfdist.allreduce.native import install, library  # noqa: E402

keras = tf.keras


class BehindFirewall(install.Listener):
    """Tells a port that drops every connection, and has no memory to share."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # The kernel drops connections for which the queue of a listener has no room.
        self.full = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.callers = [socket.socket() for _ in range(3)]
        for caller in self.callers:
            caller.setblocking(False)
            caller.connect_ex(self.full.getsockname())
        self.port, self.machine = self.full.getsockname()[1], "elsewhere"


if "firewall" in WORDS and INDEX == 0:
    install.Listener = BehindFirewall
if "old" in WORDS:
    library.PROTOCOL += 1


class Fault(keras.callbacks.Callback):
    """What worker 1 does after the third batch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and INDEX == 1:
            if "kill" in WORDS:
                os.kill(os.getpid(), signal.SIGKILL)
            if "sleep" in WORDS:
                time.sleep(60)


def build_model():
    tokens = keras.layers.Input((6,), dtype="int32")
    features = keras.layers.Input((5,))
    rows = keras.layers.Embedding(50, 8)(tokens)
    joined = keras.layers.Concatenate()([keras.layers.GlobalAveragePooling1D()(rows), features])
    hidden = keras.layers.Dense(300, activation="tanh")(joined)
    hidden = keras.layers.BatchNormalization(synchronized=True)(hidden)
    return keras.Model([tokens, features], keras.layers.Dense(1)(hidden))


def main():
    if "kill" in WORDS:
        # The launcher ends the other workers at once.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    transport = next((word for word in WORDS if word in ("auto", "tensorflow", "native")), None)
    keras.backend.set_floatx("float32" if value("compression") else "float64")
    if transport is None:
        strategy = tf.distribute.get_strategy()
    else:
        options = tfdist.AllReduceOptions(
            transport=transport,
            algorithm=value("algorithm") or "auto",
            compression=value("compression"),
            bytes_per_pack=None if "mirrored" in WORDS else 4096,
            timeout_seconds=5 if "sleep" in WORDS else None,
        )
        name = "mirrored" if "mirrored" in WORDS else "multi_worker_mirrored"
        strategy = tfdist.create_strategy(name, devices=int(value("devices") or 1), all_reduce=options)
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    tokens, features = rng.integers(0, 50, (90, 6)), rng.normal(size=(90, 5))
    y = rng.normal(size=(90, 1))
    with strategy.scope():
        model = build_model()
        optimizer = keras.optimizers.Adam(0.01, clipnorm=0.5)
        if "distributed" in WORDS:
            optimizer = tfdist.optimizers.DistributedOptimizer(optimizer)
        model.compile(optimizer, "mse", metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices(((tokens, features), y)).batch(16)
    began = time.monotonic()
    try:
        history = model.fit(data, epochs=3, verbose=0, callbacks=[Fault()]).history
    except tf.errors.OpError as error:
        # The process lives on. The statistics of batch normalization cannot be read, which takes a sum over workers.
        after = [float(np.sum(weight)) for weight in model.trainable_weights]
        found = {"error": type(error).__name__, "message": error.message, "after": after}
        found["seconds"] = time.monotonic() - began
        write(found)
        os._exit(3)
    communicators = getattr(strategy, "_tfdist_communicators", ())
    weights = [np.asarray(weight) for weight in model.get_weights()]
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()
    write(
        {
            "history": history,
            "weights": [weight.tolist() for weight in weights],
            "digest": digest,
            "sent": [communicator.bytes_sent for communicator in communicators],
        }
    )


def write(found):
    with open(os.path.join(FOLDER, f"{INDEX}.json"), "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
