"""What a worker of Ray does before the train function: holds a port, describes the cluster, and chooses the Keras."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import ray

from tfdist._tensorflow import LEGACY_KERAS, asks_for_tf_keras
from tfdist.cluster import ClusterConfig
from tfdist.cluster.address import join_address
from tfdist.cluster.environments import FORCED
from tfdist.cluster.launched import ATTEMPT, LAUNCH_ID, LIVE, PROGRESS_FILE
from tfdist.cluster.sockets import HeldPort
from tfdist.cluster.tf_config import VARIABLE

# The ports of this process, which are held until it ends.
_held: list[HeldPort] = []


def hold_port() -> str:
    """Returns the address of this worker, with a free port that no other program gets while this process lives.

    The port is bound, and nothing listens on it until TensorFlow does.
    """
    port = HeldPort()
    _held.append(port)
    return join_address(ray.util.get_node_ip_address(), port.number)


def variables(addresses: Sequence[str], index: int, *, launch_id: str, attempt: int) -> dict[str, str]:
    """Returns the environment variables that describe the cluster and its start to a worker.

    Args:
        addresses: the address of each worker.
        index: index of this worker.
        launch_id: name of the training, the same for all of its starts.
        attempt: how often the workers had been started before.

    Example:
        >>> described = variables(["10.0.0.1:4000", "10.0.0.2:4000"], 1, launch_id="4f1c", attempt=2)
        >>> described["TF_CONFIG"]
        '{"cluster": {"worker": ["10.0.0.1:4000", "10.0.0.2:4000"]}, "task": {"type": "worker", "index": 1}}'
        >>> described["TFDIST_ATTEMPT"]
        '2'
    """
    cluster = ClusterConfig(jobs={"worker": tuple(addresses)}, task_type="worker", task_index=index)
    return {
        VARIABLE: cluster.to_tf_config(),
        # Ray may run under Slurm or another scheduler, whose variables the worker inherits.
        FORCED: "tf_config",
        LAUNCH_ID: launch_id,
        ATTEMPT: str(attempt),
        # Those of a launcher under which Ray was started.
        PROGRESS_FILE: "",
        LIVE: "",
    }


def choose_keras(*, tf_keras: bool) -> None:
    """Makes `tf.keras` of this process Keras 3 or tf_keras.

    Args:
        tf_keras: whether it is to be tf_keras.

    Raises:
        ValueError: if TensorFlow has been imported with another choice.
    """
    if tf_keras == asks_for_tf_keras(os.environ):
        return
    if "tensorflow" in sys.modules:
        wanted = "tf_keras" if tf_keras else "Keras 3"
        raise ValueError(
            f"expected TensorFlow not to be imported before the train function, which is to run with {wanted}, "
            "received a process that has imported it; import it in the train function."
        )
    os.environ[LEGACY_KERAS] = "1" if tf_keras else "0"


def set_up(addresses: Sequence[str], index: int, *, launch_id: str, attempt: int, tf_keras: bool) -> None:
    """Prepares the environment of this worker for the train function.

    Args:
        addresses: the address of each worker, as `hold_port` has returned it.
        index: index of this worker.
        launch_id: name of the training, the same for all of its starts.
        attempt: how often the workers had been started before.
        tf_keras: whether `tf.keras` is to be tf_keras.

    Raises:
        ValueError: if TensorFlow has been imported with another Keras.
    """
    choose_keras(tf_keras=tf_keras)
    os.environ.update(variables(addresses, index, launch_id=launch_id, attempt=attempt))
