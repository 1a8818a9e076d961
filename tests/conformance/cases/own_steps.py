"""train_step, test_step and predict_step of one's own, and what programs do around them."""

from __future__ import annotations
