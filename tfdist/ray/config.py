"""TfdistConfig: what Ray Train does on the workers before the train function of a trainer."""

from __future__ import annotations

import dataclasses
import os
import uuid
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from tfdist._tensorflow import asks_for_tf_keras
from tfdist.ray.worker import hold_port, set_up

# The workers run already, and what they do takes less than a second.
_SECONDS = 120.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfdistConfig(BackendConfig):
    """Describes the workers of a TfdistTrainer.

    Args:
        tf_keras: whether `tf.keras` on the workers is tf_keras. None: if it is in the program that makes the trainer,
            that is, if TF_USE_LEGACY_KERAS=1 is set there.

    Raises:
        ValueError: if tf_keras is something else.

    Example:
        >>> from tfdist.ray import TfdistConfig
        >>> TfdistConfig(tf_keras=False).tf_keras
        False
    """

    tf_keras: bool | None = None

    def __post_init__(self) -> None:
        if self.tf_keras not in (None, True, False):
            raise ValueError(f"expected tf_keras to be True, False or None, received {self.tf_keras!r}.")
        # Now, since the workers do not have the environment of this program.
        object.__setattr__(
            self, "tf_keras", asks_for_tf_keras(os.environ) if self.tf_keras is None else bool(self.tf_keras)
        )

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that prepares the workers."""
        return TfdistBackend


class TfdistBackend(Backend):
    """Gives the workers of each start their ports, and describes the cluster to them.

    Ray makes one object for each training, in the process that starts and restarts the workers.
    """

    def __init__(self) -> None:
        self._launch_id = ""
        self._attempt = 0

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        """Called after all workers have been started, and after each restart.

        Args:
            worker_group: the workers of Ray.
            backend_config: the TfdistConfig of the trainer.
        """
        if self._launch_id:
            self._attempt += 1
        else:
            self._launch_id = uuid.uuid4().hex
        addresses = ray.get(worker_group.execute_async(hold_port), timeout=_SECONDS)
        ray.get(
            [
                worker_group.execute_single_async(
                    rank,
                    set_up,
                    addresses,
                    rank,
                    launch_id=self._launch_id,
                    attempt=self._attempt,
                    tf_keras=backend_config.tf_keras,
                )
                for rank in range(len(addresses))
            ],
            timeout=_SECONDS,
        )
