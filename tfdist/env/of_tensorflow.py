"""Prints as JSON what only a process with TensorFlow knows: python -m tfdist.env.of_tensorflow."""

from __future__ import annotations

import json
import os
from typing import Any


def main() -> None:
    """Prints one line of JSON; a part that cannot be found out has an error instead."""
    print(json.dumps(found()), flush=True)
    os._exit(0)


def found() -> dict[str, Any]:
    """Returns what TensorFlow and Keras say about themselves, and the mends."""
    import tensorflow as tf

    return {
        "version": tf.__version__,
        "git version": tf.version.GIT_VERSION,
        "compiler": tf.version.COMPILER_VERSION,
        "compile flags": [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")],
        "build": {name: _plain(value) for name, value in sorted(tf.sysconfig.get_build_info().items())},
        "oneDNN": _one_dnn(),
        "devices": _devices(),
        **_keras(),
    }


def _one_dnn() -> str:
    try:
        from tensorflow.python.util import _pywrap_util_port

        return "its kernels are used" if _pywrap_util_port.IsMklEnabled() else "its kernels are not used"
    except (ImportError, AttributeError) as error:
        return f"not known: {error}"


def _devices() -> list[str]:
    import tensorflow as tf

    lines = []
    for device in tf.config.list_physical_devices():
        details = tf.config.experimental.get_device_details(device) if device.device_type == "GPU" else {}
        words = [str(details[name]) for name in ("device_name", "compute_capability") if name in details]
        lines.append(" ".join([device.name.removeprefix("/physical_device:"), *words]))
    return lines


def _keras() -> dict[str, Any]:
    from tfdist.keras_compat import keras_in_use
    from tfdist.keras_compat.registry import MENDS

    try:
        keras = keras_in_use()
    except (ValueError, ImportError) as error:
        return {"keras": {"error": str(error)}, "mends": {}}
    mends: dict[str, list[str]] = {"needed": [], "not needed": [], "unknown": []}
    for mend in MENDS:
        if not mend.is_written_for(keras):
            continue
        try:
            mends["needed" if mend.defect_present() else "not needed"].append(mend.name)
        except Exception as error:  # A check looks into Keras, where any error is possible.
            mends["unknown"].append(f"{mend.name} ({type(error).__name__}: {error})")
    return {"keras": {"name": keras.name, "version": keras.version}, "mends": mends}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) else [str(one) for one in value]


if __name__ == "__main__":
    main()
