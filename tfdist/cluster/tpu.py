"""Looks for a TPU without importing TensorFlow: in the environment variables, on Colab, and on a TPU VM."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping

_DEVICES = "/dev/accel*"
_VFIO_DEVICES = "/dev/vfio/[0-9]*"


@dataclasses.dataclass(frozen=True)
class FoundTpu:
    """The result of looking for a TPU.

    Args:
        address: the address for TPUClusterResolver; None if no TPU was found.
        source: how the TPU was found, in a few words; None if no TPU was found.
        looked_for: every sign of a TPU that was looked for.

    Example:
        >>> FoundTpu("local", "this machine has /dev/accel0", ("the devices /dev/accel* (TPU VM)",)).address
        'local'
    """

    address: str | None
    source: str | None
    looked_for: tuple[str, ...]


def find_tpu(environ: Mapping[str, str] | None = None, *, root: str = "") -> FoundTpu:
    """Returns the TPU that the environment or this machine offers; its address is None if there is no TPU.

    Args:
        environ: the environment variables; None is the environment of this process.
        root: a prefix for the paths of device files.

    Example:
        >>> from tfdist.cluster.tpu import find_tpu
        >>> find_tpu({"TPU_NAME": "my-tpu"}).address
        'my-tpu'
        >>> find_tpu({}, root="/nowhere").address is None
        True
    """
    env = os.environ if environ is None else environ
    looked_for: list[str] = []
    for variable, where in (("TPU_NAME", "a named TPU"), ("COLAB_TPU_ADDR", "Colab")):
        looked_for.append(f"the environment variable {variable} ({where})")
        value = env.get(variable)
        if value:
            colab = variable == "COLAB_TPU_ADDR" and not value.startswith("grpc://")
            return FoundTpu(f"grpc://{value}" if colab else value, f"{variable} is {value!r}", tuple(looked_for))
    looked_for.append(f"the devices {_DEVICES} (TPU VM)")
    devices = glob.glob(root + _DEVICES)
    # A VFIO device need not be a TPU. TPU_ACCELERATOR_TYPE is set on a TPU VM.
    looked_for.append(f"TPU_ACCELERATOR_TYPE with the devices {_VFIO_DEVICES} (TPU VM)")
    if env.get("TPU_ACCELERATOR_TYPE"):
        devices += glob.glob(root + _VFIO_DEVICES)
    if devices:
        return FoundTpu("local", f"this machine has {sorted(devices)[0]}", tuple(looked_for))
    return FoundTpu(None, None, tuple(looked_for))
