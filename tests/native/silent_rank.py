"""Worker 1 is stopped, and all others call tfdist.collectives.all_reduce. Each prints the error, and how long it took.

Worker 0 kills the stopped worker after all others have printed their errors.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import tensorflow as tf

import tfdist

FOLDER = Path(sys.argv[1])
SILENT, TIMEOUT_SECONDS, SECONDS = 1, 5.0, 60.0
CONFIG = json.loads(os.environ["TF_CONFIG"])
INDEX, WORKERS = CONFIG["task"]["index"], len(CONFIG["cluster"]["worker"])


def main() -> None:
    # The launcher ends the other workers as soon as one of them has ended.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    options = tfdist.AllReduceOptions(transport="native", timeout_seconds=TIMEOUT_SECONDS)
    strategy = tfdist.create_strategy("multi_worker_mirrored", all_reduce=options)
    with strategy.scope():
        tfdist.collectives.all_reduce(tf.ones([3]))
        if INDEX == SILENT:
            (FOLDER / "pid").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        began = time.monotonic()
        try:
            tfdist.collectives.all_reduce(tf.ones([3]))
        except tf.errors.DeadlineExceededError as error:
            print("SILENT", INDEX, f"{time.monotonic() - began:.1f}", error.message, flush=True)
            (FOLDER / f"{INDEX}").touch()
    while INDEX == 0 and time.monotonic() < began + SECONDS:
        if len(list(FOLDER.iterdir())) == WORKERS:
            os.kill(int((FOLDER / "pid").read_text()), signal.SIGKILL)
            break
        time.sleep(0.1)
    os._exit(0)


if __name__ == "__main__":
    main()
