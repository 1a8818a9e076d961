"""Runs programs one after another in one process: python -m tests.end_to_end.public_programs TOPOLOGY FOLDER NAME...

TOPOLOGY is one_device, mirrored or two_workers. The result of each program is written to FOLDER when it ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def make_strategy(topology: str) -> Any:
    """Returns the strategy of a topology. One device is stock Keras without a strategy."""
    if topology == "one_device":
        return None
    import tfdist

    if topology == "mirrored":
        return tfdist.create_strategy("mirrored", devices=2)
    return tfdist.create_strategy("multi_worker_mirrored", startup_timeout_seconds=120)


def compute_in_float64() -> None:
    """Makes Keras compute in float64, in which rounding cannot hide a wrong weight of a loss."""
    import tensorflow as tf

    tf.keras.backend.set_floatx("float64")
    tf.keras.mixed_precision.set_global_policy("float64")


def main() -> None:
    """Runs the programs. A program that raises does not keep the next ones from running."""
    topology, folder, *names = sys.argv[1:]
    strategy = make_strategy(topology)
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if topology == "two_workers" else 0
    for name in names:
        start = time.monotonic()
        compute_in_float64()
        program = importlib.import_module(f"tests.end_to_end.public_programs.{name}")
        tf.keras.utils.set_random_seed(11)
        try:
            result: dict[str, Any] = program.run(strategy)
        except Exception:
            traceback.print_exc()
            result = {"error": traceback.format_exc()}
        tf.keras.backend.clear_session()
        # TensorFlow never frees some graphs. Collections, of which clear_session makes one, would visit them all again.
        gc.freeze()
        scratch = Path(folder, f".{topology}-{index}-{name}.json")
        scratch.write_text(json.dumps(result))
        scratch.rename(Path(folder, scratch.name[1:]))
        print(f"{topology}: {name} took {time.monotonic() - start:.1f} s", flush=True)
    assert (topology == "one_device") == ("tfdist" not in sys.modules)


if __name__ == "__main__":
    main()
