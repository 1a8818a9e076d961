"""The program of a task: python -m tfdist.notebook.task FOLDER, where FOLDER is one of `run`."""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path

from tfdist._sending import open_folders
from tfdist.cluster import ClusterConfig
from tfdist.cluster.launched import launched
from tfdist.notebook.values import CALL, FAILED, RETURNED, Failure, write_returned


def main(folder: Path) -> None:
    """Calls the function that the notebook has sent; the chief writes what it returns.

    Args:
        folder: folder with the call, for the results.
    """
    inner = open_folders((folder / CALL).read_bytes())
    config = ClusterConfig.detect()
    task = config.task_name
    try:
        function, args, kwargs = pickle.loads(inner)
        value = function(*args, **kwargs)
        if config.is_chief:
            write_returned(folder / RETURNED, value)
    except Exception as error:
        # With its time, since the others fail soon after the first one.
        launch = launched()
        failure = Failure.of(task, error, seconds=time.time(), attempt=launch.attempt if launch else 0)
        (folder / FAILED.replace("*", task.replace(" ", "-"))).write_bytes(pickle.dumps(failure))
        sys.exit(failure.text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
