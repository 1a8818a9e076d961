"""Names a run, so that another one whose directory has the same name is not taken for it."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from tfdist.saving.scratch_folder import scratch_folder

_RUN = ".run"


def run_of(directory: str) -> str:
    """Returns a text that names a run: a directory that is removed and made again has another one.

    Args:
        directory: an existing directory.
    """
    path = Path(directory, _RUN)
    if not path.exists():
        # The next writer removes the folder if this process is killed.
        with scratch_folder(directory) as scratch:
            note = Path(scratch, "run")
            note.write_text(uuid.uuid4().hex)
            # Several workers may do so at the same time. The first one decides.
            with contextlib.suppress(FileExistsError):
                os.link(note, path)
    return path.read_text()
