"""Files of a training job: written by one worker, and found complete or not at all."""

from tfdist.saving.chief import save_model, written_by_chief
from tfdist.saving.scratch import replaced

__all__ = ["replaced", "save_model", "written_by_chief"]
