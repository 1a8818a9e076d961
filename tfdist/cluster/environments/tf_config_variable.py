"""The cluster that the environment variable TF_CONFIG describes."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.cluster import tf_config
from tfdist.cluster.tf_config import SINGLE_PROCESS, Fields


def is_here(environment: Mapping[str, str]) -> bool:
    """Returns whether TF_CONFIG is set.

    Args:
        environment: the environment variables.

    Example:
        >>> is_here({"TF_CONFIG": " "})
        False
    """
    return bool(environment.get(tf_config.VARIABLE, "").strip())


def read(environment: Mapping[str, str]) -> Fields:
    """Returns the cluster; a TF_CONFIG without a cluster means a single process.

    Args:
        environment: the environment variables.

    Raises:
        ValueError: if TF_CONFIG describes no valid cluster; the message names the field.

    Example:
        >>> read({"TF_CONFIG": '{"environment": "cloud"}'}).jobs
        {}
    """
    document = tf_config.load(environment.get(tf_config.VARIABLE))
    if not tf_config.has_cluster(document):
        return SINGLE_PROCESS
    try:
        return tf_config.parse(document)
    except ValueError as error:
        # The prefix says where the user finds the field that the message names.
        raise ValueError(f"{tf_config.VARIABLE}: {error}") from None
