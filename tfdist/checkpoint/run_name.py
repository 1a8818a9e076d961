"""Names a run, so that another one whose directory has the same name is not taken for it."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from tfdist.saving.scratch_folder import scratch_folder

# Seen by everybody, so that `rm -rf DIR/*` removes it and the next training begins anew.
_RUN = "run"
# What earlier versions have called it.
_FORMER = ".run"


def path_of_run(directory: str) -> Path:
    """Returns the path of the file that names the run of a directory.

    Args:
        directory: directory of the snapshots.
    """
    former = Path(directory, _FORMER)
    return former if former.exists() else Path(directory, _RUN)


def run_of(directory: str) -> str:
    """Returns a text that names a run: a directory that is removed and made again has another one.

    Args:
        directory: an existing directory.
    """
    path = path_of_run(directory)
    if not path.exists():
        # The next writer removes the folder if this process is killed.
        with scratch_folder(directory) as scratch:
            note = Path(scratch, "run")
            note.write_text(uuid.uuid4().hex)
            # Several workers may do so at the same time. The first one decides.
            with contextlib.suppress(FileExistsError):
                os.link(note, path)
    return path.read_text()
