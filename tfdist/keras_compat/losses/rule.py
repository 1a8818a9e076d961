"""StepRule: how the losses and gradients of replicas make up those of the global batch, for one step function.

- "replica_mean": the program computes the mean over the rows of its replica. The mean over the global batch is the mean
  of the replicas' values, weighted by their rows.
- "global_sum": the program divides its losses for all replicas together. The value of the global batch is the sum.

With "auto" the rule is "replica_mean", until the program is seen to divide for itself while its step is traced.
"""

from __future__ import annotations

from typing import Any, TypeVar

import tensorflow as tf

from tfdist._log import get_logger

_Strategy = TypeVar("_Strategy", bound=tf.distribute.Strategy)


def remember_loss_rule(strategy: _Strategy, loss: str) -> _Strategy:
    """Stores on a strategy the rule that the user asked for, and returns the strategy.

    Args:
        strategy: a strategy that tfdist has made.
        loss: one of LOSS_RULES.
    """
    strategy._tfdist_loss_rule = loss
    return strategy


def loss_rule_of(strategy: tf.distribute.Strategy) -> str:
    """Returns the rule that a strategy was made with; "auto" if tfdist has not made the strategy."""
    return getattr(strategy, "_tfdist_loss_rule", "auto")


class StepRule:
    """The rule of one step function of a model, which may change while the step is traced for the first time.

    Args:
        asked: the rule that the user asked for, one of LOSS_RULES.
        program: name of the model class and the step, for messages.

    Attributes:
        name: "replica_mean" or "global_sum".
        divided_sums: which of the step's losses that are sums the program divides by the rows of the replica, by their
            order.
        may_divide_by_replicas: whether the program may divide by a number of replicas that it has read: it has read the
            number in the step, or the user asked for "global_sum".
        averaged: variables whose values on the replicas are averaged at the end of the step, by their id.
    """

    def __init__(self, asked: str, program: str) -> None:
        self.name = "replica_mean" if asked == "auto" else asked
        self._asked, self._program = asked, program
        self._used = self._changed_after_use = self._has_sum = self._warned = False
        self.divided_sums: frozenset[int] = frozenset()
        self.may_divide_by_replicas = asked == "global_sum"
        self.averaged: dict[int, tf.Variable] = {}

    def use(self) -> str:
        """Returns the name of the rule, by which the caller weights a loss, a metric or a gradient."""
        self._used = True
        return self.name

    def sees_division(self, by: str) -> None:
        """Chooses "global_sum", unless the user has asked for a rule.

        Args:
            by: the call by which the program divides, for the log.
        """
        if self._asked != "auto" or self.name == "global_sum":
            return
        self.name = "global_sum"
        self._changed_after_use = self._used
        get_logger().info(
            "%s divides its losses for all replicas (%s), so its losses and gradients are added up: rule global_sum; "
            "create_strategy(loss=...) says another rule",
            self._program,
            by,
        )

    @property
    def looks_for_sums(self) -> bool:
        """Whether a sum over rows is a line of the log: the user asked for no rule, and none has been seen before."""
        return self._asked == "auto" and self.name == "replica_mean" and not self._has_sum

    def sees_sum(self) -> None:
        """Notes that a loss is a sum over rows."""
        self._has_sum = True

    def warn_of_sum(self) -> None:
        """Says in the log that a sum over rows is taken as a mean, unless the program divides for all replicas."""
        if not self._has_sum or self._warned or self.name != "replica_mean":
            return
        self._warned = True
        get_logger().warning(
            "%s has a loss that is a sum over rows, which counts as a mean over the rows of a replica: expected a mean "
            'or a value for each row, or create_strategy(loss="global_sum") if a step of your own divides by the '
            'global batch; loss="replica_mean" ends this line, and tfdist verify compares with one device',
            self._program,
        )

    def sees_divided_sums(self, numbers: set[int]) -> None:
        """Says which losses that are sums the program divides by the rows of the replica.

        Args:
            numbers: their positions in the order in which the step computes such losses.
        """
        if not numbers <= self.divided_sums:
            self.divided_sums |= numbers
            self._changed_after_use = True

    def takes_change(self) -> bool:
        """Returns whether the rule changed after it had been used, so that the step must be traced again."""
        changed, self._changed_after_use = self._changed_after_use, False
        return changed

    def refuse_change(self) -> None:
        """Raises ValueError if the rule changed after it had been used in a step that cannot be traced again."""
        if self.takes_change():
            raise ValueError(
                f"expected {self._program} to divide its losses from its first trace on, received a division after "
                'losses or gradients had been weighted; call create_strategy with loss="global_sum".'
            )


def rule_for(model: Any, step: str) -> StepRule:
    """Returns a new rule for a step function of a model.

    Args:
        model: a Keras model that was made in the scope of a strategy.
        step: name of the step, such as "train_step".
    """
    return StepRule(loss_rule_of(model.distribute_strategy), f"{type(model).__name__}.{step}")
