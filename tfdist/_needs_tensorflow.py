"""Raises an error that says what to install, if TensorFlow is not installed. Packages that need it import this."""

from __future__ import annotations

from tfdist._tensorflow import MISSING, is_installed

# TensorFlow itself is not imported here: some modules import it only when they need it.
if not is_installed():
    raise ModuleNotFoundError(MISSING, name="tensorflow")
