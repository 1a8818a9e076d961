"""Runs the trainings of `tfdist test` on one device: python -m tfdist.test.one_device FOLDER WORKERS.

The process does not prepare Keras as create_strategy does: it computes what stock Keras computes on one device.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tfdist.test.parent import end_with_parent

FILE = "one-device.json"


def main(folder: str, workers: str) -> None:
    """Writes the numbers of each training to a file in the folder.

    Args:
        folder: folder of this task.
        workers: number of workers, which decides about the size of batches.
    """
    end_with_parent()
    from tfdist.test.programs import PROGRAMS, use_float64

    use_float64()
    numbers = {
        # JSON keeps every bit of a float64.
        check: {name: value.tolist() for name, value in program(None, int(workers)).items()}
        for check, program in PROGRAMS.items()
    }
    Path(folder, FILE).write_text(json.dumps(numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
