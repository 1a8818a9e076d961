"""Options of Keras 3's optimizers that parameter servers do not support."""

from __future__ import annotations

from typing import Any


def refuse_optimizer_options(optimizer: Any) -> None:
    """Raises ValueError for optimizer options that update variables inside of tf.cond.

    Keras 3 fails to update variables of a parameter server inside of tf.cond.

    Args:
        optimizer: a Keras 3 optimizer, or a LossScaleOptimizer around it.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for option in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
        value = getattr(inner, option, None)
        if value and (option != "ema_overwrite_frequency" or inner.use_ema):
            raise ValueError(
                f"expected an optimizer without {option} for the strategy parameter_server, received {value!r}; leave "
                f"{option} out, since Keras 3 fails to update variables of ps tasks inside of tf.cond "
                "(keras-team/keras#20582)."
            )
