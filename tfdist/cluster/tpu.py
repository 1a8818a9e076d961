"""Where a TPU may be: a TPU VM, Colab, or one that the environment names; looked for without importing TensorFlow."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping

_DEVICES = "/dev/accel*"
_VFIO_DEVICES = "/dev/vfio/[0-9]*"


@dataclasses.dataclass(frozen=True)
class FoundTpu:
    """What was found: the address for TPUClusterResolver, where it comes from, and everything that was looked for."""

    address: str | None
    source: str | None
    looked_for: tuple[str, ...]


def find_tpu(environ: Mapping[str, str] | None = None, *, root: str = "") -> FoundTpu:
    """Returns the TPU that this machine offers, or none.

    Args:
        environ: the environment; None is that of this process.
        root: prefix of the device files' folder.

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
    # VFIO devices may be anything; on a TPU VM the environment says which accelerator they are.
    looked_for.append(f"TPU_ACCELERATOR_TYPE with the devices {_VFIO_DEVICES} (TPU VM)")
    if env.get("TPU_ACCELERATOR_TYPE"):
        devices += glob.glob(root + _VFIO_DEVICES)
    if devices:
        return FoundTpu("local", f"this machine has {sorted(devices)[0]}", tuple(looked_for))
    return FoundTpu(None, None, tuple(looked_for))
