"""The names of the rules for losses, apart so that `adopt` checks them without TensorFlow."""

from __future__ import annotations

LOSS_RULES = ("auto", "replica_mean", "global_sum")


def check_loss_rule(loss: str) -> None:
    """Raises ValueError if a value is not one of LOSS_RULES."""
    if loss not in LOSS_RULES:
        raise ValueError(f"expected loss to be one of {', '.join(LOSS_RULES)}, received {loss!r}.")
