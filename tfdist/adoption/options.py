"""The options of `tfdist.adopt`, as a plain value."""

from __future__ import annotations

import dataclasses
import math

from tfdist._loss_rules import check_loss_rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdoptionOptions:
    """How the strategies of a program are prepared; `adopt` describes each option.

    Example:
        >>> AdoptionOptions().startup_timeout_seconds
        300.0
    """

    loss: str = "auto"
    sync_batch_norm: bool = False
    startup_timeout_seconds: float = 300.0

    def __post_init__(self) -> None:
        check_loss_rule(self.loss)
        if not (self.startup_timeout_seconds > 0 and math.isfinite(self.startup_timeout_seconds)):
            raise ValueError(
                "expected startup_timeout_seconds to be positive and finite, received "
                f"{self.startup_timeout_seconds!r}; leave it out for 300 s."
            )
