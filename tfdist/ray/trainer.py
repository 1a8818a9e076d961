"""TfdistTrainer: a trainer of Ray Train whose workers form a cluster of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tfdist.ray.config import TfdistConfig
from tfdist.ray.worker import choose_keras


class TfdistTrainer(DataParallelTrainer):
    """Calls a train function on each worker of Ray; `tfdist.create_strategy()` in it finds the other workers.

    The workers run Keras 3, unless the program asks for tf_keras. Each worker holds its port until TensorFlow listens
    on it. `fit` returns Ray's Result, which has the metrics and checkpoints that `tfdist.ray.ReportCallback` reports.
    After a failure, Ray starts all workers again as often as its FailureConfig allows, and a training with
    `tfdist.checkpoint.AutoResume` goes on from its newest snapshot.

    Args:
        train_loop_per_worker: the train function, without arguments or with a dict.
        train_loop_config: the dict.
        tfdist_config: options of tfdist; None is `TfdistConfig()`.
        scaling_config: Ray's ScalingConfig: the number of workers, and what each of them gets.
        options: further options of Ray's DataParallelTrainer, such as run_config, datasets and dataset_config.

    Raises:
        ValueError: if an option has no meaning.

    Example:
        >>> from ray.train import ScalingConfig
        >>> from tfdist.ray import TfdistTrainer
        >>> def train():
        ...     ...
        >>> trainer = TfdistTrainer(train, scaling_config=ScalingConfig(num_workers=2))
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        tfdist_config: TfdistConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        **options: Any,
    ) -> None:
        if hasattr(train_loop_per_worker, "fit") or not callable(train_loop_per_worker):
            raise ValueError(
                f"expected a train function, received {type(train_loop_per_worker).__name__}; write a function that "
                "makes the strategy and the model, and calls fit."
            )
        if "backend_config" in options:
            raise ValueError(
                "expected the options of tfdist in tfdist_config, received backend_config; leave it out, since "
                "TfdistTrainer has a backend of its own."
            )
        config = TfdistConfig() if tfdist_config is None else tfdist_config
        if not isinstance(config, TfdistConfig):
            raise ValueError(f"expected tfdist_config to be a TfdistConfig, received {type(config).__name__}.")
        if getattr(scaling_config, "use_tpu", False):
            raise ValueError("expected workers with CPUs or GPUs, received use_tpu=True; leave it out.")
        self._tf_keras = bool(config.tf_keras)
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=config,
            scaling_config=scaling_config,
            **options,
        )

    def fit(self) -> Any:
        """Runs the training, and returns Ray's Result.

        Raises:
            ray.train.TrainingFailedError: if a worker has failed, and Ray's FailureConfig allows no further start.
        """
        if self.scaling_config.num_workers == 0:
            # Ray then calls the train function in this process, without a backend.
            choose_keras(tf_keras=self._tf_keras)
        return super().fit()
