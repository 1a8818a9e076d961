"""Runs a program with a seed and in float64, in which rounding hides nothing: python -m tests.migration.seeded PROGRAM.

Each worker of a program starts with weights of its own, of which those of the chief are kept. With the seed they are
also those of a run on one device.
"""

from __future__ import annotations

import runpy
import sys

import tensorflow as tf

if __name__ == "__main__":
    program = sys.argv[1]
    sys.argv = sys.argv[1:]
    tf.keras.backend.set_floatx("float64")
    tf.keras.utils.set_random_seed(1)
    runpy.run_path(program, run_name="__main__")
