"""Writes the files of a training job: one worker writes them, and no program can read an incomplete file."""

from tfdist.saving.chief import save_model, written_by_chief
from tfdist.saving.scratch import replaced

__all__ = ["replaced", "save_model", "written_by_chief"]
