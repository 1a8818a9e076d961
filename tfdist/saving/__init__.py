"""Writes the files of a training job: one worker writes them, and no program can read an incomplete file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.saving.chief import save_model as save_model
    from tfdist.saving.chief import written_by_chief as written_by_chief
    from tfdist.saving.scratch import replaced as replaced

__all__ = ["replaced", "save_model", "written_by_chief"]


def __getattr__(name: str) -> Any:
    # Imported when they are used: `tfdist.checkpoint` reads and writes snapshots without TensorFlow.
    if name in ("save_model", "written_by_chief"):
        import tfdist._needs_tensorflow
        from tfdist.saving import chief

        return getattr(chief, name)
    if name == "replaced":
        import tfdist._needs_tensorflow  # noqa: F401
        from tfdist.saving.scratch import replaced

        return replaced
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
